//! Where a driver stores the mask of a stream, found in child processes and cached.
//!
//! A trial at a wrong place can crash the process, and a write can do anything, so the search, each
//! trial and the verification are separate jobs. Only a verified place is cached, for this driver
//! build and this GPU. Only stream masks need it, so the search runs when they are first used.

use partita_core::kept;
use partita_driver::Cuda;
use partita_driver::stream_proof::{self, Board, Found};
use serde::{Deserialize, Serialize};

use super::{Cache, Measured, check_origin, driver_build, keep, without_mps};
use crate::child::{Job, JobError};
use crate::error::Error;
use crate::files;
use crate::gpu::Gpu;
use crate::install::Install;

/// The names of the jobs.
pub const SEARCH_JOB: &str = "search-stream-mask";
/// Asks one place in a process that may not survive it.
pub const ASK_JOB: &str = "ask-stream-mask";
/// Verifies one place by writing to it.
pub const VERIFY_JOB: &str = "verify-stream-mask";

const MAGIC: &str = kept::STREAM_PLACE.0;
const VERSION: u32 = kept::STREAM_PLACE.1;
/// The most candidates that are tried, each in a separate process. An H200's driver leaves 12.
const PLACES_MAX: usize = 64;

/// How a place was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundBy {
    /// Tracing a launch, and asking this many places.
    Trace {
        /// How many were asked.
        places: u32,
    },
    /// The list of known offsets.
    List,
}

/// The verified place of a stream's mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamPlace {
    /// From the stream's structure, in bytes.
    pub offset_bytes: u32,
    /// How it was found.
    pub found_by: FoundBy,
    /// How many sets it was verified with.
    pub sets: u32,
    /// How many blocks ran then, none outside its set.
    pub blocks: u64,
}

/// A kept place.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    magic: String,
    version: u32,
    driver: String,
    gpu_uuid: String,
    place: StreamPlace,
}

/// The parameters of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlaceRequest {
    /// The calibration.
    pub measured: Measured,
    /// The place to ask or verify, in bytes from the stream's structure; not for the search.
    pub offset_bytes: u32,
}

/// The result of the search job.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchResult {
    /// The place, and how many were asked.
    Shown {
        /// In bytes from the stream's structure.
        offset_bytes: u32,
        /// How many were asked.
        places: u32,
    },
    /// Places to be asked.
    Candidates(Vec<u32>),
    /// The listed place.
    Listed(u32),
}

/// The result of the verification job.
#[derive(Debug, Serialize, Deserialize)]
pub struct VerifyResult {
    /// How many sets were tried.
    pub sets: u32,
    /// How many blocks ran, none outside its set.
    pub blocks: u64,
}

impl Cache {
    /// Where the driver of `gpu` keeps the mask of a stream: the kept place if
    /// it is this very GPU's under this very driver, else one found and
    /// verified now, which is kept.
    ///
    /// # Errors
    /// [`Error::Unproved`] with the reason if it was not found or not verified.
    pub fn stream_place(
        &self,
        install: &Install,
        gpu: &Gpu,
        measured: &Measured,
    ) -> Result<StreamPlace, Error> {
        let driver = driver_build(install, gpu)?;
        if let Ok(place) = self.read_place(&driver, gpu) {
            return Ok(place);
        }
        let _turn = self.turn(&driver, gpu);
        match self.read_place(&driver, gpu) {
            Ok(place) => Ok(place),
            Err(_) => self.renew_stream_place(install, gpu, measured),
        }
    }

    /// Finds and verifies the place again, even if there is a cached one, and caches the result.
    ///
    /// # Errors
    /// As [`Cache::stream_place`].
    pub fn renew_stream_place(
        &self,
        install: &Install,
        gpu: &Gpu,
        measured: &Measured,
    ) -> Result<StreamPlace, Error> {
        let driver = driver_build(install, gpu)?;
        let place = find(install, gpu, measured)?;
        let record = Record {
            magic: MAGIC.to_owned(),
            version: VERSION,
            driver: driver.clone(),
            gpu_uuid: gpu.facts.uuid.clone(),
            place,
        };
        // A cache that cannot be written costs the next program a few seconds, and nothing else.
        let _ = keep(&self.dir, &self.place_path(&driver, gpu), &record);
        Ok(place)
    }

    fn place_path(&self, driver: &str, gpu: &Gpu) -> std::path::PathBuf {
        self.path(driver, gpu).with_extension("stream.json")
    }

    fn read_place(&self, driver: &str, gpu: &Gpu) -> Result<StreamPlace, String> {
        let bytes = files::read_trusted(&self.place_path(driver, gpu), kept::FILE_BYTES_MAX)?;
        let record: Record = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        if record.magic != MAGIC || record.version != VERSION {
            return Err("another format".to_owned());
        }
        check_origin(&record.driver, &record.gpu_uuid, driver, gpu)?;
        Ok(record.place)
    }
}

fn find(install: &Install, gpu: &Gpu, measured: &Measured) -> Result<StreamPlace, Error> {
    let refuse = |reason: String| Error::Unproved {
        driver: gpu.driver_version.clone(),
        gpu: gpu.label(),
        reason: format!("stream masks: {reason}"),
    };
    let job = |name, offset_bytes| -> Result<Job, Error> {
        let request = PlaceRequest { measured: measured.clone(), offset_bytes };
        Ok(Job::new(install, name, &request)?.envs(gpu.variables()).envs(without_mps()).limit(super::LIMIT))
    };
    let searched: SearchResult = job(SEARCH_JOB, 0)?.run()?.map_err(|error| error.or(refuse))?;
    let (offset_bytes, found_by) = match searched {
        SearchResult::Shown { offset_bytes, places } => (offset_bytes, FoundBy::Trace { places }),
        SearchResult::Listed(offset_bytes) => (offset_bytes, FoundBy::List),
        SearchResult::Candidates(places) => {
            let asked = first_that_answers(&places, |offset_bytes| job(ASK_JOB, offset_bytes)?.run())?;
            let found = asked.ok_or_else(|| {
                refuse(format!("none of the {} candidate places of the mask is right", places.len()))
            })?;
            (found, FoundBy::Trace { places: places.len() as u32 })
        }
    };
    let verified: VerifyResult = job(VERIFY_JOB, offset_bytes)?.run()?.map_err(|error| error.or(refuse))?;
    Ok(StreamPlace { offset_bytes, found_by, sets: verified.sets, blocks: verified.blocks })
}

/// Tries each place in turn. If the process of a trial dies or fails, the place is wrong.
fn first_that_answers(
    places: &[u32],
    mut ask: impl FnMut(u32) -> Result<Result<bool, JobError>, Error>,
) -> Result<Option<u32>, Error> {
    for &offset_bytes in places.iter().take(PLACES_MAX) {
        match ask(offset_bytes)? {
            Ok(true) => return Ok(Some(offset_bytes)),
            Err(JobError::Interrupted { signal }) => return Err(Error::Interrupted { signal }),
            Ok(false) | Err(_) => {}
        }
    }
    Ok(None)
}

/// Does a job's work on the first GPU that this process sees, with its board.
fn on_board<T>(
    measured: &Measured,
    work: impl FnOnce(&partita_driver::Gpu<'_>, Board<'_>) -> Result<T, partita_driver::Error>,
) -> Result<T, String> {
    let topology = measured.topology()?;
    let layout = partita_abi::qmd::layout_for(measured.device_class, measured.qmd_version)
        .map_err(|error| error.to_string())?;
    let cuda = Cuda::load(None).map_err(|error| format!("libcuda.so.1: {error}"))?;
    let gpu = partita_driver::Gpu::open(&cuda, 0).map_err(|error| error.to_string())?;
    let result = work(&gpu, Board { topology: &topology, layout });
    // A driver that was tampered with may hang in its destructors.
    std::mem::forget(gpu);
    result.map_err(|error| error.to_string())
}

/// The job [`SEARCH_JOB`].
///
/// # Errors
/// Why there is no such place.
pub fn search_here(request: &PlaceRequest) -> Result<SearchResult, String> {
    on_board(&request.measured, stream_proof::search).map(|found| match found {
        Found::Shown { offset_bytes, candidates } => SearchResult::Shown { offset_bytes, places: candidates },
        Found::Candidates(places) => SearchResult::Candidates(places),
        Found::Listed(offset_bytes) => SearchResult::Listed(offset_bytes),
    })
}

/// The job [`ASK_JOB`].
///
/// # Errors
/// The driver's words.
pub fn ask_here(request: &PlaceRequest) -> Result<bool, String> {
    on_board(&request.measured, |gpu, board| stream_proof::answers(gpu, board, request.offset_bytes))
}

/// The job [`VERIFY_JOB`].
///
/// # Errors
/// The contradiction.
pub fn verify_here(request: &PlaceRequest) -> Result<VerifyResult, String> {
    on_board(&request.measured, |gpu, board| stream_proof::verify(gpu, board, request.offset_bytes))
        .map(|proof| VerifyResult { sets: proof.sets, blocks: proof.blocks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_whose_processes_die_are_passed_over() {
        let died = || JobError::Died { how: "signal 11".to_owned() };
        let mut asked = Vec::new();
        let found = first_that_answers(&[8, 16, 24, 32], |offset_bytes| {
            asked.push(offset_bytes);
            Ok(match offset_bytes {
                8 => Err(died()),
                16 => Ok(false),
                _ => Ok(true),
            })
        });
        assert_eq!(found.unwrap(), Some(24));
        assert_eq!(asked, [8, 16, 24]);
        assert_eq!(first_that_answers(&[8], |_| Ok(Err(died()))).unwrap(), None);
        let interrupted = first_that_answers(&[8, 16], |_| Ok(Err(JobError::Interrupted { signal: 2 })));
        assert!(matches!(interrupted, Err(Error::Interrupted { signal: 2 })));
    }
}
