//! The keeper's answers.

use crate::pool::{Lease, LeaseId, OwnerId, SlabId, Totals};

use super::bytes::{Reader, Writer};
use super::fault::Code;
use super::{BadFrame, ITEMS_MAX, ROWS_MAX};
use crate::name::TenantName;

/// Bytes of a handle of CUDA's interprocess calls.
pub const HANDLE_BYTES: usize = partita_driver::ipc::HANDLE_BYTES;

/// Largest length of an error's text in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// How a slab is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleKind {
    /// A handle of CUDA's interprocess calls, in the frame.
    Ipc,
    /// A file descriptor of the driver's virtual memory, beside the frame.
    Descriptor,
}

/// The keeper's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version of the frames.
    pub version: u32,
    /// How slabs are opened.
    pub handles: HandleKind,
    /// A number that no other keeper has had: leases belong to one instance.
    pub instance: u64,
    pub gpu_uuid: [u8; 16],
    /// Its process.
    pub pid: u32,
    /// Largest number of leases in one request.
    pub batch_max: u32,
    /// The longest deadline, in milliseconds.
    pub ttl_ms_max: u32,
}

/// The answer to a sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Leases of the connection that ended by their deadline since the last answer.
    pub expired: u32,
    /// Slabs that the client should close when it no longer uses them.
    pub retiring: Vec<SlabId>,
}

/// The keeper's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The pool's sums.
    pub totals: Totals,
    /// Connections.
    pub clients: u64,
    /// Chains that own leases.
    pub chains: u64,
    /// Processes that ended without closing their leases, until they are gone.
    pub dying: u64,
    /// How long it has run, in milliseconds.
    pub uptime_ms: u64,
    /// Requests answered.
    pub requests: u64,
    /// Invalid frames.
    pub bad_frames: u64,
}

impl Status {
    fn fields(&self) -> [u64; 18] {
        let Self { totals, clients, chains, dying, uptime_ms, requests, bad_frames } = *self;
        [
            totals.tenants,
            totals.owners,
            totals.slabs,
            totals.slab_bytes,
            totals.used_bytes,
            totals.leases,
            totals.resting,
            totals.leased_ever,
            totals.given_back_ever,
            totals.expired_ever,
            totals.slabs_made_ever,
            totals.slabs_freed_ever,
            clients,
            chains,
            dying,
            uptime_ms,
            requests,
            bad_frames,
        ]
    }

    fn from_fields(fields: [u64; 18]) -> Self {
        let [tenants, owners, slabs, slab_bytes, used_bytes, leases, resting, leased_ever, rest @ ..] =
            fields;
        let [given_back_ever, expired_ever, slabs_made_ever, slabs_freed_ever, clients, rest @ ..] = rest;
        let [chains, dying, uptime_ms, requests, bad_frames] = rest;
        let totals = Totals {
            tenants,
            owners,
            slabs,
            slab_bytes,
            used_bytes,
            leases,
            resting,
            leased_ever,
            given_back_ever,
            expired_ever,
            slabs_made_ever,
            slabs_freed_ever,
        };
        Self { totals, clients, chains, dying, uptime_ms, requests, bad_frames }
    }
}

/// A lease in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The lease, as it was first reported.
    pub lease: Lease,
    /// Requested bytes.
    pub bytes_asked: u64,
    /// The age of the lease, in milliseconds.
    pub age_ms: u64,
    /// After how long without a sign of life it ends, in milliseconds; 0 for never.
    pub ttl_ms: u32,
    /// The rest of that time, in milliseconds; 0 without a deadline, or if it has ended.
    pub left_ms: u32,
    /// The owner's process; 0 for a chain.
    pub pid: u32,
    pub owner: OwnerId,
    /// The tenant's user.
    pub uid: u32,
    /// Whether it has ended and its memory rests.
    pub is_resting: bool,
    pub tenant: TenantName,
}

/// A tenant in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantRow {
    /// The tenant's user.
    pub uid: u32,
    /// Its connections and chains.
    pub owners: u32,
    /// Its quota of slabs, in bytes.
    pub quota_bytes: u64,
    /// Its slabs, in bytes.
    pub slab_bytes: u64,
    /// Its leased or resting blocks, in bytes.
    pub used_bytes: u64,
    pub name: TenantName,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Request::Hello`](super::Request::Hello).
    Welcome(Welcome),
    /// To [`Request::Lease`](super::Request::Lease).
    Leased(Vec<Lease>),
    /// Success.
    Done,
    /// To [`Request::Open`](super::Request::Open).
    Slab {
        slab: SlabId,
        bytes: u64,
        /// The handle; `None` if a descriptor comes with the frame.
        handle: Option<[u8; HANDLE_BYTES]>,
    },
    /// To [`Request::Beat`](super::Request::Beat).
    Beat(Beat),
    /// To [`Request::Own`](super::Request::Own): the chain's number.
    Owner(OwnerId),
    /// To [`Request::Status`](super::Request::Status).
    Status(Status),
    /// To [`Request::Leases`](super::Request::Leases): fewer than [`ROWS_MAX`] are the last.
    Leases(Vec<LeaseRow>),
    /// To [`Request::Tenants`](super::Request::Tenants): fewer than [`ROWS_MAX`] are the last.
    Tenants(Vec<TenantRow>),
    /// Failure, without any change.
    Error {
        /// The kind of error.
        code: Code,
        /// The fault, the reason, and the remedy.
        text: String,
    },
}

impl Reply {
    fn kind(&self) -> u16 {
        match self {
            Self::Welcome(_) => 0x8001,
            Self::Leased(_) => 0x8002,
            Self::Done => 0x8003,
            Self::Slab { .. } => 0x8004,
            Self::Beat(_) => 0x8006,
            Self::Owner(_) => 0x8007,
            Self::Status(_) => 0x8008,
            Self::Leases(_) => 0x8009,
            Self::Tenants(_) => 0x800a,
            Self::Error { .. } => 0xffff,
        }
    }

    /// Descriptors that come with it.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        usize::from(matches!(self, Self::Slab { handle: None, .. }))
    }

    /// Writes it as a frame, replacing the buffer's content.
    pub fn encode(&self, tag: u64, buffer: &mut Vec<u8>) {
        let mut to = Writer::new(buffer, self.kind(), tag);
        match self {
            Self::Welcome(welcome) => {
                to.u32(welcome.version).u32(u32::from(welcome.handles == HandleKind::Descriptor));
                to.u64(welcome.instance).raw(&welcome.gpu_uuid);
                to.u32(welcome.pid).u32(welcome.batch_max).u32(welcome.ttl_ms_max).u32(0);
            }
            Self::Leased(leases) => {
                to.u32(leases.len() as u32).u32(0);
                for lease in leases {
                    write_lease(&mut to, lease);
                }
            }
            Self::Done => {}
            Self::Slab { slab, bytes, handle } => {
                to.u64(slab.0).u64(*bytes).u32(u32::from(handle.is_none())).u32(0);
                to.raw(&handle.unwrap_or([0; HANDLE_BYTES]));
            }
            Self::Beat(beat) => {
                to.u32(beat.expired).u32(0);
                to.list(&beat.retiring.iter().map(|slab| slab.0).collect::<Vec<_>>());
            }
            Self::Owner(owner) => {
                to.u64(owner.0);
            }
            Self::Status(status) => {
                for field in status.fields() {
                    to.u64(field);
                }
            }
            Self::Leases(rows) => {
                to.u32(rows.len() as u32).u32(0);
                for row in rows {
                    write_lease(&mut to, &row.lease);
                    to.u64(row.bytes_asked).u64(row.age_ms).u32(row.ttl_ms).u32(row.left_ms).u64(row.owner.0);
                    to.u32(row.uid)
                        .u32(row.pid)
                        .u32(u32::from(row.is_resting))
                        .u32(0)
                        .raw(&row.tenant.to_bytes());
                }
            }
            Self::Tenants(rows) => {
                to.u32(rows.len() as u32).u32(0);
                for row in rows {
                    to.u32(row.uid).u32(row.owners).u64(row.quota_bytes).u64(row.slab_bytes);
                    to.u64(row.used_bytes).raw(&row.name.to_bytes());
                }
            }
            Self::Error { code, text } => {
                let end = text.floor_char_boundary(TEXT_BYTES_MAX);
                to.u16(*code as u16).u16(0).raw(&text.as_bytes()[..end]);
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
        from.kind = "reply";
        let reply = match kind {
            0x8001 => {
                let version = from.u32()?;
                let handles = handle_kind(&mut from)?;
                let (instance, gpu_uuid) = (from.u64()?, from.raw()?);
                let (pid, batch_max, ttl_ms_max) = (from.u32()?, from.u32()?, from.u32()?);
                from.padding()?;
                Self::Welcome(Welcome { version, handles, instance, gpu_uuid, pid, batch_max, ttl_ms_max })
            }
            0x8002 => {
                let count = from.count(1, ITEMS_MAX)?;
                Self::Leased((0..count).map(|_| read_lease(&mut from)).collect::<Result<_, _>>()?)
            }
            0x8003 => Self::Done,
            0x8004 => {
                let (slab, bytes) = (SlabId(from.u64()?), from.u64()?);
                let kind = handle_kind(&mut from)?;
                from.padding()?;
                let handle = from.raw()?;
                Self::Slab { slab, bytes, handle: (kind == HandleKind::Ipc).then_some(handle) }
            }
            0x8006 => {
                let expired = from.u32()?;
                from.padding()?;
                let retiring = from.list(0, ITEMS_MAX)?.into_iter().map(SlabId).collect();
                Self::Beat(Beat { expired, retiring })
            }
            0x8007 => Self::Owner(OwnerId(from.u64()?)),
            0x8008 => {
                let mut fields = [0; 18];
                for field in &mut fields {
                    *field = from.u64()?;
                }
                Self::Status(Status::from_fields(fields))
            }
            0x8009 => {
                let count = from.count(0, ROWS_MAX)?;
                Self::Leases((0..count).map(|_| lease_row(&mut from)).collect::<Result<_, _>>()?)
            }
            0x800a => {
                let count = from.count(0, ROWS_MAX)?;
                Self::Tenants((0..count).map(|_| tenant_row(&mut from)).collect::<Result<_, _>>()?)
            }
            0xffff => {
                let number = from.u16()?;
                let code = Code::from_number(number).ok_or(from.value("code", u64::from(number)))?;
                from.u16()?;
                let text = String::from_utf8_lossy(from.take_rest()).into_owned();
                Self::Error { code, text }
            }
            kind => return Err(BadFrame::Kind { kind }),
        };
        from.end()?;
        Ok(reply)
    }
}

fn handle_kind(from: &mut Reader<'_>) -> Result<HandleKind, BadFrame> {
    Ok(if from.flag("handles")? { HandleKind::Descriptor } else { HandleKind::Ipc })
}

fn write_lease(to: &mut Writer<'_>, lease: &Lease) {
    to.u64(lease.id.0).u64(lease.slab.0).u64(lease.offset).u64(lease.bytes);
}

fn read_lease(from: &mut Reader<'_>) -> Result<Lease, BadFrame> {
    let (id, slab) = (LeaseId(from.u64()?), SlabId(from.u64()?));
    Ok(Lease { id, slab, offset: from.u64()?, bytes: from.u64()? })
}

fn lease_row(from: &mut Reader<'_>) -> Result<LeaseRow, BadFrame> {
    let lease = read_lease(from)?;
    let (bytes_asked, age_ms, ttl_ms, left_ms) = (from.u64()?, from.u64()?, from.u32()?, from.u32()?);
    let (owner, uid, pid) = (OwnerId(from.u64()?), from.u32()?, from.u32()?);
    let is_resting = from.flag("is_resting")?;
    from.padding()?;
    let tenant = from.name()?;
    Ok(LeaseRow { lease, bytes_asked, age_ms, ttl_ms, left_ms, pid, owner, uid, is_resting, tenant })
}

fn tenant_row(from: &mut Reader<'_>) -> Result<TenantRow, BadFrame> {
    let (uid, owners, quota_bytes, slab_bytes) = (from.u32()?, from.u32()?, from.u64()?, from.u64()?);
    Ok(TenantRow { uid, owners, quota_bytes, slab_bytes, used_bytes: from.u64()?, name: from.name()? })
}
