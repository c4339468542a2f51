//! Static SM partitions: a client has its own SMs, or gets error 915.
//!
//! Control programs have the commands from CUDA 13.1 on, and a daemon supports them if it was
//! started with `-S`. [`Control::offers_partitions`] tries them instead of checking versions. Live
//! drivers answer in other forms than the manual's, so only the parts that both forms have are
//! read.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::command::Control;
use crate::error::MpsError;

/// The variable with which a client requests a partition, before CUDA is initialised.
pub const PARTITION_VARIABLE: &str = "CUDA_MPS_SM_PARTITION";

/// A partition, in the form of [`PARTITION_VARIABLE`]: `GPU-…/ID`. The id is base64 and may have
/// slashes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PartitionName {
    /// The GPU.
    pub gpu_uuid: String,
    /// The partition's id.
    pub id: String,
}

impl fmt::Display for PartitionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.gpu_uuid, self.id)
    }
}

impl FromStr for PartitionName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((gpu, id)) if gpu.starts_with("GPU-") && is_id(id) => {
                Ok(Self { gpu_uuid: gpu.to_owned(), id: id.to_owned() })
            }
            _ => Err(format!(
                "{text:?} is not a partition: use GPU-…/ID, as `partita mps partitions` lists them"
            )),
        }
    }
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte))
}

/// A line of `lspart`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionRow {
    /// The GPU, or a prefix of its UUID.
    pub gpu: String,
    /// The partition; `None` for a row outside any.
    pub id: Option<String>,
    /// The other columns, in their order: chunks, SMs and clients, of which live drivers omit some.
    pub numbers: Vec<u64>,
}

impl PartitionRow {
    /// Reads a table; `None` if a line that begins with a GPU has another form.
    fn parse_table(reply: &str) -> Option<Vec<Self>> {
        reply.lines().map(str::trim).filter(|line| line.starts_with("GPU-")).map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let gpu = words.next()?.to_owned();
        let id = match words.next()? {
            "-" | "N/A" => None,
            id if is_id(id) => Some(id.to_owned()),
            _ => return None,
        };
        let numbers =
            words.filter(|word| *word != "-").map(|word| word.parse().ok()).collect::<Option<_>>()?;
        Some(Self { gpu, id, numbers })
    }
}

/// The id in the answer to `sm_partition add`: alone, or after the word in a sentence about its
/// creation.
fn created(reply: &str) -> Option<&str> {
    let words: Vec<&str> =
        reply.split_whitespace().map(|word| word.trim_matches(|c: char| "\"'.,:".contains(c))).collect();
    let id = match words[..] {
        [id] => Some(id),
        _ if !words.contains(&"created") => None,
        _ => words.windows(2).find(|pair| pair[0].eq_ignore_ascii_case("partition")).map(|pair| pair[1]),
    };
    id.filter(|id| is_id(id))
}

impl Control {
    /// Whether this daemon knows static partitions.
    ///
    /// # Errors
    /// See [`Control::command`], but for [`MpsError::UnknownCommand`] and [`MpsError::Refused`],
    /// which mean no.
    pub fn offers_partitions(&self) -> Result<bool, MpsError> {
        match self.command("lspart") {
            Ok(_) => Ok(true),
            Err(MpsError::UnknownCommand { .. } | MpsError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a partition with this many chunks: 8 SMs each from Hopper on. The last one of a GPU
    /// gets the rest, so read its size with [`Control::sm_partitions`].
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::Refused`] with too few free chunks, or clients on the
    /// GPU.
    pub fn add_sm_partition(&self, gpu_uuid: &str, chunks: u32) -> Result<PartitionName, MpsError> {
        let id = self.read(&format!("sm_partition add {gpu_uuid} {chunks}"), |reply| {
            created(reply).map(str::to_owned)
        })?;
        Ok(PartitionName { gpu_uuid: gpu_uuid.to_owned(), id })
    }

    /// Removes an unused partition.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::Refused`] for one in use.
    pub fn remove_sm_partition(&self, partition: &PartitionName) -> Result<(), MpsError> {
        self.command(&format!("sm_partition rm {} {}", partition.gpu_uuid, partition.id)).map(drop)
    }

    /// The partitions of all GPUs.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn sm_partitions(&self) -> Result<Vec<PartitionRow>, MpsError> {
        self.read("lspart", PartitionRow::parse_table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_the_first_slash() {
        let name: PartitionName = "GPU-1a/ab/c+d=".parse().unwrap();
        assert_eq!((name.gpu_uuid.as_str(), name.id.as_str()), ("GPU-1a", "ab/c+d="));
        assert_eq!(name.to_string(), "GPU-1a/ab/c+d=");
        for text in ["", "GPU-1", "GPU-1/", "0/a", "GPU-1/a b"] {
            assert!(text.parse::<PartitionName>().is_err(), "{text}");
        }
    }

    #[test]
    fn either_answer_to_add_has_the_id() {
        for reply in
            ["Ab/1=", "Ab/1=\n", "Partition Ab/1= created on GPU-1", "SM partition \"Ab/1=\" was created."]
        {
            assert_eq!(created(reply), Some("Ab/1="), "{reply}");
        }
        for reply in ["", "no such thing", "Partition of nothing"] {
            assert_eq!(created(reply), None, "{reply}");
        }
    }

    #[test]
    fn tables_of_seven_and_of_five_columns() {
        let reply = "GPU            Partition  Free-chunk Used-chunk Free-SM Used-SM Clients
GPU-1a2b       -          14         2          112     20      -
GPU-1a2b       Ab/1=      -          2          -       16      yes
";
        assert_eq!(PartitionRow::parse_table(reply), None, "a column that is no number");
        let rows = PartitionRow::parse_table(&reply.replace("yes", "1")).unwrap();
        assert_eq!((rows[0].id.as_deref(), &rows[0].numbers[..]), (None, &[14, 2, 112, 20][..]));
        assert_eq!((rows[1].id.as_deref(), &rows[1].numbers[..]), (Some("Ab/1="), &[2, 16, 1][..]));
        assert_eq!(PartitionRow::parse_table("nothing").unwrap(), []);
    }
}
