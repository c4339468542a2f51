//! Why the keeper refuses a frame.

use crate::pool::Refusal;

use super::chains::ChainError;
use super::memory::MemoryError;
use crate::wire::{BadFrame, Code, Request};

/// Why a request is refused.
pub(super) struct Fault {
    pub(super) code: Code,
    pub(super) text: String,
}

/// The request of a frame that came with this many descriptors.
pub(super) fn checked(frame: &[u8], found: usize) -> Result<Request, Fault> {
    let request = Request::decode(frame)?;
    let expected = request.descriptors();
    if found != expected {
        return Err(BadFrame::Descriptors { kind: request.name(), found, expected }.into());
    }
    Ok(request)
}

pub(super) fn check_distinct(ids: impl Iterator<Item = u64>, what: &str) -> Result<(), Fault> {
    let mut ids: Vec<u64> = ids.collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            let text = format!("{what} {} is named twice in one request: name it once", pair[0]);
            Err(Fault { code: Code::Bounds, text })
        }
    }
}

pub(super) fn fault(code: Code, text: &str) -> Fault {
    Fault { code, text: text.to_owned() }
}

impl From<BadFrame> for Fault {
    fn from(bad: BadFrame) -> Self {
        Self { code: Code::BadFrame, text: bad.to_string() }
    }
}

impl From<ChainError> for Fault {
    fn from(error: ChainError) -> Self {
        match error {
            ChainError::Refused(refusal) => refusal.into(),
            error => Self { code: Code::NotAChain, text: error.to_string() },
        }
    }
}

impl From<MemoryError> for Fault {
    fn from(error: MemoryError) -> Self {
        if error.is_full {
            let text =
                format!("the GPU has no memory left: {}; end a program on it, or ask for less", error.text);
            return Self { code: Code::OutOfMemory, text };
        }
        Self { code: Code::Driver, text: format!("memory cannot be allocated: {}", error.text) }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::Bytes { .. } | Refusal::Batch { .. } | Refusal::Ttl { .. } => Code::Bounds,
            Refusal::Quota { .. } => Code::Quota,
            Refusal::Capacity { .. } => Code::OutOfMemory,
            Refusal::QuotaInUse { .. } | Refusal::Resting { .. } | Refusal::OwnerLives { .. } => Code::InUse,
            Refusal::Tenants { .. }
            | Refusal::Owners { .. }
            | Refusal::Slabs { .. }
            | Refusal::Leases { .. } => Code::TooMany,
            _ => Code::Unknown,
        };
        Self { code, text: refusal.to_string() }
    }
}
