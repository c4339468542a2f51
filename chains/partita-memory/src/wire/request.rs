//! The clients' requests.

use crate::pool::{LeaseId, OwnerId, SlabId};

use super::bytes::{Reader, Writer};
use super::{BadFrame, ITEMS_MAX};
use crate::name::TenantName;

/// "partmem" and the greeting's own number: no other protocol begins with it.
const MAGIC: u64 = u64::from_le_bytes(*b"partmem\x01");

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The greeting: for a tenant, or `None` to query and to administer. Answer:
    /// [`Reply::Welcome`](super::Reply::Welcome).
    Hello {
        /// The client's version of the frames.
        version: u32,
        /// The tenant of the memory.
        tenant: Option<TenantName>,
    },
    /// Leases blocks, all or none. Answer: [`Reply::Leased`](super::Reply::Leased).
    Lease {
        /// A chain's number, or `None` for this connection.
        owner: Option<OwnerId>,
        bytes: u64,
        /// The number.
        count: u32,
        /// After how long without a sign of life they end, in milliseconds; 0 for never.
        ttl_ms: u32,
    },
    /// Returns leases, all or none. Answer: [`Reply::Done`](super::Reply::Done).
    Free { leases: Vec<LeaseId> },
    /// Requests the handle of a slab, which counts as open from then on. Answer:
    /// [`Reply::Slab`](super::Reply::Slab).
    Open { slab: SlabId },
    /// Reports that slabs are closed. Answer: [`Reply::Done`](super::Reply::Done).
    Close { slabs: Vec<SlabId> },
    /// A sign of life. Answer: [`Reply::Beat`](super::Reply::Beat).
    Beat,
    /// Joins the chain whose file comes with the frame, which then owns leases. A process must hold
    /// a lock on the file. Answer: [`Reply::Owner`](super::Reply::Owner).
    Own,
    /// Asks for the keeper's state. Answer: [`Reply::Status`](super::Reply::Status).
    Status,
    /// Asks for the leases after one. Answer: [`Reply::Leases`](super::Reply::Leases).
    Leases {
        /// The last one of the previous answer, 0 for none.
        after: LeaseId,
    },
    /// Asks for the tenants after some. Answer: [`Reply::Tenants`](super::Reply::Tenants).
    Tenants {
        /// How many previous answers had.
        skip: u32,
    },
    /// Requests that only the keeper's own user and root may send. Answer:
    /// [`Reply::Done`](super::Reply::Done).
    Privileged(Privileged),
}

/// Requests that only the keeper's own user and root may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Privileged {
    /// Sets a tenant's quota; it need not have clients yet.
    Quota {
        /// The tenant's user.
        uid: u32,
        tenant: TenantName,
        /// Its quota of slabs.
        bytes: u64,
    },
    /// Ends any lease before its time. Its memory rests until its owner has returned it too, or has
    /// ended.
    TakeBack { lease: LeaseId },
    /// Frees the memory of an ended owner although its process is not gone: the client guarantees
    /// that the process no longer writes there.
    Disown { owner: OwnerId },
    /// Makes this connection that of another process, whose pidfd comes with the frame: it owns the
    /// leases, and they end with it. The client has greeted without a tenant.
    SpeakFor {
        /// The process's user.
        uid: u32,
        /// Its number, for lists.
        pid: u32,
        tenant: TenantName,
    },
    /// Ends the keeper.
    End {
        /// Even while memory is leased, which is then lost.
        even_if_leased: bool,
    },
}

impl Request {
    fn kind(&self) -> (u16, &'static str) {
        match self {
            Self::Hello { .. } => (1, "hello"),
            Self::Lease { .. } => (2, "lease"),
            Self::Free { .. } => (3, "free"),
            Self::Open { .. } => (4, "open"),
            Self::Close { .. } => (5, "close"),
            Self::Beat => (6, "beat"),
            Self::Own => (7, "own"),
            Self::Status => (8, "status"),
            Self::Leases { .. } => (9, "leases"),
            Self::Tenants { .. } => (10, "tenants"),
            Self::Privileged(Privileged::Quota { .. }) => (11, "quota"),
            Self::Privileged(Privileged::End { .. }) => (12, "end"),
            Self::Privileged(Privileged::TakeBack { .. }) => (13, "take back"),
            Self::Privileged(Privileged::Disown { .. }) => (14, "disown"),
            Self::Privileged(Privileged::SpeakFor { .. }) => (15, "speak for"),
        }
    }

    /// Its name in errors.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.kind().1
    }

    /// Descriptors that come with it.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        usize::from(matches!(self, Self::Own | Self::Privileged(Privileged::SpeakFor { .. })))
    }

    /// Writes it as a frame, replacing the buffer's content.
    pub fn encode(&self, tag: u64, buffer: &mut Vec<u8>) {
        let mut to = Writer::new(buffer, self.kind().0, tag);
        match self {
            Self::Hello { version, tenant } => {
                let name = tenant.map_or([0; TenantName::BYTES], TenantName::to_bytes);
                to.u64(MAGIC).u32(*version).u32(u32::from(tenant.is_some())).raw(&name);
            }
            Self::Lease { owner, bytes, count, ttl_ms } => {
                to.u64(owner.map_or(0, |owner| owner.0)).u64(*bytes).u32(*count).u32(*ttl_ms);
            }
            Self::Free { leases } => {
                to.list(&leases.iter().map(|lease| lease.0).collect::<Vec<_>>());
            }
            Self::Open { slab } => {
                to.u64(slab.0);
            }
            Self::Close { slabs } => {
                to.list(&slabs.iter().map(|slab| slab.0).collect::<Vec<_>>());
            }
            Self::Beat | Self::Own | Self::Status => {}
            Self::Leases { after } => {
                to.u64(after.0);
            }
            Self::Tenants { skip } => {
                to.u32(*skip).u32(0);
            }
            Self::Privileged(Privileged::Quota { uid, tenant, bytes }) => {
                to.u32(*uid).u32(0).u64(*bytes).raw(&tenant.to_bytes());
            }
            Self::Privileged(Privileged::End { even_if_leased }) => {
                to.u32(u32::from(*even_if_leased)).u32(0);
            }
            Self::Privileged(Privileged::TakeBack { lease }) => {
                to.u64(lease.0);
            }
            Self::Privileged(Privileged::Disown { owner }) => {
                to.u64(owner.0);
            }
            Self::Privileged(Privileged::SpeakFor { uid, pid, tenant }) => {
                to.u32(*uid).u32(*pid).raw(&tenant.to_bytes());
            }
        }
        to.finish();
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// [`BadFrame`].
    pub fn decode(frame: &[u8]) -> Result<Self, BadFrame> {
        let (kind, mut from) = Reader::new(frame)?;
        let request = match kind {
            1 => {
                from.kind = "hello";
                let magic = from.u64()?;
                if magic != MAGIC {
                    return Err(from.value("magic", magic));
                }
                let version = from.u32()?;
                let has_tenant = from.flag("has_tenant")?;
                let tenant = match has_tenant {
                    true => Some(from.name()?),
                    false if from.raw::<{ TenantName::BYTES }>()? == [0; TenantName::BYTES] => None,
                    false => return Err(from.value("has_tenant", 0)),
                };
                Self::Hello { version, tenant }
            }
            2 => {
                from.kind = "lease";
                let owner = from.u64()?;
                Self::Lease {
                    owner: (owner != 0).then_some(OwnerId(owner)),
                    bytes: from.u64()?,
                    count: from.u32()?,
                    ttl_ms: from.u32()?,
                }
            }
            3 => {
                from.kind = "free";
                Self::Free { leases: from.list(1, ITEMS_MAX)?.into_iter().map(LeaseId).collect() }
            }
            4 => {
                from.kind = "open";
                Self::Open { slab: SlabId(from.u64()?) }
            }
            5 => {
                from.kind = "close";
                Self::Close { slabs: from.list(1, ITEMS_MAX)?.into_iter().map(SlabId).collect() }
            }
            6 => {
                from.kind = "beat";
                Self::Beat
            }
            7 => {
                from.kind = "own";
                Self::Own
            }
            8 => {
                from.kind = "status";
                Self::Status
            }
            9 => {
                from.kind = "leases";
                Self::Leases { after: LeaseId(from.u64()?) }
            }
            10 => {
                from.kind = "tenants";
                let skip = from.u32()?;
                from.padding()?;
                Self::Tenants { skip }
            }
            11 => {
                from.kind = "quota";
                let uid = from.u32()?;
                from.padding()?;
                Self::Privileged(Privileged::Quota { uid, bytes: from.u64()?, tenant: from.name()? })
            }
            12 => {
                from.kind = "end";
                let even_if_leased = from.flag("even_if_leased")?;
                from.padding()?;
                Self::Privileged(Privileged::End { even_if_leased })
            }
            13 => {
                from.kind = "take back";
                Self::Privileged(Privileged::TakeBack { lease: LeaseId(from.u64()?) })
            }
            14 => {
                from.kind = "disown";
                Self::Privileged(Privileged::Disown { owner: OwnerId(from.u64()?) })
            }
            15 => {
                from.kind = "speak for";
                let (uid, pid) = (from.u32()?, from.u32()?);
                Self::Privileged(Privileged::SpeakFor { uid, pid, tenant: from.name()? })
            }
            kind => return Err(BadFrame::Kind { kind }),
        };
        from.end()?;
        Ok(request)
    }
}
