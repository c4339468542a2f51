//! Requests, one reply each.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use partita_abi::CuResult;
use partita_core::TpcSet;

use super::client::{Client, Ctx, Stream};
use super::code::Program;
use super::graph::Graph;
use super::{Board, ClientId, Exported};
use crate::shared::channel::CALL_BYTES;
use crate::shared::place::usable_bytes;
use crate::shared::protocol::{
    AllocKind, BoardStatus, PAGE_BYTES, ProcessStatus, Reply, Request, StreamKind,
};
use crate::shared::socket;
use crate::shared::sys::SharedMap;

type Answer = Result<(Reply, Option<OwnedFd>), CuResult>;

fn plain(reply: Reply) -> Answer {
    Ok((reply, None))
}

impl Board {
    /// Handles a request and sends the reply.
    pub(super) fn answer(&mut self, id: ClientId, request: Request, descriptors: Vec<OwnedFd>) {
        if let Request::Hello { version, role, command } = request {
            self.welcome(id, version, role, command);
            return;
        }
        if let (Request::AwaitFault { server }, true) = (&request, self.observers.contains_key(&id)) {
            self.await_fault(id, *server);
            return;
        }
        // The client's earlier commands come first.
        while self.drain(id, usize::MAX) {}
        let answer = if self.clients.contains_key(&id) {
            self.client_request(id, request, descriptors)
        } else {
            self.observer_request(request)
        };
        let (reply, descriptor) = answer.unwrap_or_else(|code| (Reply::Refused(code.0), None));
        self.reply(id, &reply, descriptor.as_ref());
    }

    pub(super) fn reply(&mut self, id: ClientId, reply: &Reply, descriptor: Option<&OwnedFd>) {
        let client = self.clients.get(&id);
        let connection = client.map(|client| &client.socket).or_else(|| self.observers.get(&id));
        let Some(connection) = connection else { return };
        let channel = client.map(|client| &client.channel).filter(|channel| channel.is_called());
        let sent = postcard::to_allocvec(reply).map_err(std::io::Error::other).and_then(|bytes| {
            if let (Some(channel), None) = (channel, descriptor)
                && bytes.len() <= CALL_BYTES
            {
                channel.reply(Some(&bytes));
                return Ok(());
            }
            let descriptors: Vec<_> = descriptor.iter().map(|fd| fd.as_fd()).collect();
            socket::send(connection.as_fd(), &bytes, &descriptors)?;
            if let Some(channel) = channel {
                channel.reply(None);
            }
            Ok(())
        });
        if sent.is_err() {
            self.disconnect(id);
        }
    }

    fn observer_request(&mut self, request: Request) -> Answer {
        match request {
            Request::Status => plain(Reply::Status(self.status())),
            Request::MemInfo => plain(self.mem_info()),
            Request::Terminate { server, pid } => self.terminate(server, pid).map(|()| (Reply::Done, None)),
            Request::ServerGone { server } => {
                self.server_gone(server);
                plain(Reply::Done)
            }
            Request::Contain { server, code } => {
                self.fail_all(server, CuResult(code));
                plain(Reply::Done)
            }
            _ => Err(CuResult::NOT_PERMITTED),
        }
    }

    fn mem_info(&self) -> Reply {
        let total = usable_bytes(&self.spec);
        Reply::MemInfo { free: total - self.memory.used(), total }
    }

    /// As under MPS: a limit shows as less free memory; the total stays the device's.
    fn client_mem_info(&mut self, id: ClientId) -> Result<Reply, CuResult> {
        let left = self.client(id)?.limit_left_bytes();
        let total = usable_bytes(&self.spec);
        let free = total - self.memory.used();
        Ok(Reply::MemInfo { free: left.map_or(free, |left| free.min(left)), total })
    }

    pub(super) fn status(&mut self) -> BoardStatus {
        let overhead = self.ctx_overhead_bytes();
        let now = self.page.now_ns();
        self.busy.settle(now);
        self.memory_busy.settle(now, || self.engine.memory_busy_ns());
        let processes = self
            .clients
            .values_mut()
            .map(|client| {
                client.busy.settle(now);
                let contexts = client.ctxs.len() as u32;
                let used_bytes = client.space.device_bytes() + u64::from(contexts) * overhead;
                ProcessStatus {
                    pid: client.pid,
                    command: client.command.clone(),
                    contexts,
                    used_bytes,
                    mps: client.mps,
                    fault: client.fault,
                    sm_percent: client.busy.last_percent,
                }
            })
            .collect();
        BoardStatus {
            used_bytes: self.memory.used(),
            busy_percent: self.busy.last_percent,
            memory_percent: self.memory_busy.last_percent,
            corruptions: self.corruptions,
            processes,
        }
    }

    fn client_request(&mut self, id: ClientId, request: Request, descriptors: Vec<OwnedFd>) -> Answer {
        let fault = self.clients.get(&id).map_or(0, |client| client.fault);
        match request {
            Request::Bye => {
                // What such a kernel touches is gone before the kernel is: the exit is a death.
                if !self.outlasts_exit(id) {
                    while self.drain(id, usize::MAX) {}
                    self.leave(id);
                }
                plain(Reply::Done)
            }
            Request::CtxCreate { sms } if fault == 0 => self.ctx_create(id, sms),
            Request::CtxDestroy { ctx } => self.ctx_destroy(id, ctx),
            Request::SetSlice { slice_us } => {
                let client = self.client(id)?;
                let (group, is_shared) = (client.group, client.mps.is_some());
                if is_shared {
                    return Err(CuResult::NOT_PERMITTED);
                }
                let set = self.engine.set_slice(group, Some(slice_us.saturating_mul(1000)));
                set.map_err(|_| CuResult::UNKNOWN)?;
                plain(Reply::Done)
            }
            Request::StreamCreate { ctx, priority, kind } if fault == 0 => {
                let (stream, seq) = self.stream_create(id, ctx, priority, kind)?;
                plain(Reply::Stream { stream, seq })
            }
            Request::StreamDestroy { stream } => self.stream_destroy(id, stream),
            Request::EventCreate => {
                let (event, secret) = self.events.create(&self.page)?;
                self.client(id)?.events.push(event);
                plain(Reply::Event { event, secret })
            }
            Request::EventOpen { event, secret } => {
                self.events.open(event, secret)?;
                self.client(id)?.events.push(event);
                plain(Reply::Event { event, secret })
            }
            Request::EventDestroy { event } => {
                let client = self.client(id)?;
                let held = client.events.iter().position(|held| *held == event);
                client.events.swap_remove(held.ok_or(CuResult::INVALID_HANDLE)?);
                for work in self.events.release(event) {
                    let _ = self.engine.complete(work);
                }
                plain(Reply::Done)
            }
            Request::LoadCode { bytes } => {
                let file = descriptors.into_iter().next().ok_or(CuResult::INVALID_VALUE)?;
                let program = Program::read(file, bytes)?;
                plain(Reply::Code(self.client(id)?.keep(program)))
            }
            Request::Load { functions } => {
                let client = self.client(id)?;
                plain(Reply::Programs(functions.into_iter().map(|spec| client.load(spec)).collect()))
            }
            Request::Unload { programs } => {
                self.client(id)?.unload(&programs);
                plain(Reply::Done)
            }
            Request::MemInfo => plain(self.client_mem_info(id)?),
            Request::GraphNodes { graph, nodes } => {
                self.client(id)?.graphs.entry(graph).or_insert_with(Graph::default).upload(nodes);
                plain(Reply::Done)
            }
            Request::GraphDrop { graph } => {
                if let Some(graph) = self.client(id)?.graphs.remove(&graph) {
                    for lane in graph.lanes {
                        let _ = self.engine.remove_stream(lane);
                    }
                }
                plain(Reply::Done)
            }
            Request::Corrupted { offset_bytes, word } => {
                self.corruptions += 1;
                let pid = self.client(id)?.pid;
                eprintln!(
                    "partita-simgpu: process {pid} wrote {word:#010x} at offset {offset_bytes:#x} of a stream's structure"
                );
                self.fail(id, CuResult::UNKNOWN);
                plain(Reply::Done)
            }
            Request::Status => plain(Reply::Status(self.status())),
            Request::Terminate { .. }
            | Request::ServerGone { .. }
            | Request::AwaitFault { .. }
            | Request::Contain { .. }
            | Request::Hello { .. } => Err(CuResult::NOT_PERMITTED),
            Request::CtxCreate { .. } | Request::StreamCreate { .. } => Err(CuResult(fault)),
            other => self.memory_request(id, other, descriptors),
        }
    }

    pub(super) fn client(&mut self, id: ClientId) -> Result<&mut Client, CuResult> {
        self.clients.get_mut(&id).ok_or(CuResult::INVALID_HANDLE)
    }

    // ---- contexts and streams ----

    fn ctx_create(&mut self, id: ClientId, sms: Option<u32>) -> Answer {
        let overhead = self.memory.allocate(self.ctx_overhead_bytes())?;
        let whole = self.client(id)?.allowed;
        let per_tpc = self.spec.topology.sms_per_tpc();
        let allowed = sms.map_or(whole, |sms| whole.lowest(sms.div_ceil(per_tpc)));
        let client = self.client(id)?;
        let ctx = client.ctx_number();
        client.ctxs.insert(ctx, Ctx { legacy: 0, overhead, allowed });
        match self.stream_create(id, ctx, 0, StreamKind::Legacy) {
            Ok((legacy, seq)) => {
                if let Some(made) = self.client(id)?.ctxs.get_mut(&ctx) {
                    made.legacy = legacy;
                }
                plain(Reply::Ctx { ctx, sms: allowed.len() * per_tpc, legacy, seq })
            }
            Err(code) => {
                self.memory.release(overhead);
                self.client(id)?.ctxs.remove(&ctx);
                Err(code)
            }
        }
    }

    fn ctx_destroy(&mut self, id: ClientId, ctx: u32) -> Answer {
        let gone = self.client(id)?.ctxs.remove(&ctx).ok_or(CuResult::INVALID_CONTEXT)?;
        let slots: Vec<u32> =
            self.client(id)?.streams.iter().filter(|(_, s)| s.ctx == ctx).map(|(slot, _)| *slot).collect();
        for slot in slots {
            let engine = self.client(id)?.streams.get(&slot).map(|stream| stream.engine);
            let _ = engine.map(|engine| self.engine.kill_stream(engine));
            self.forget_stream(id, slot);
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.functions.retain(|_, function| function.spec.ctx != ctx);
            client.space.drop_ctx(&mut self.memory, ctx);
        }
        self.memory.release(gone.overhead);
        plain(Reply::Done)
    }

    fn stream_create(
        &mut self,
        id: ClientId,
        ctx: u32,
        priority: i32,
        kind: StreamKind,
    ) -> Result<(u32, u64), CuResult> {
        let client = self.clients.get_mut(&id).ok_or(CuResult::INVALID_HANDLE)?;
        if !client.ctxs.contains_key(&ctx) {
            return Err(CuResult::INVALID_CONTEXT);
        }
        let slot = client.free_slot().ok_or(CuResult::OUT_OF_MEMORY)?;
        let priority = client.engine_priority(priority);
        let engine = match &mut client.connections {
            Some(connections) => connections.add_stream(&mut self.engine, priority),
            None => self.engine.add_stream(client.group, priority),
        };
        let engine = engine.map_err(|_| CuResult::INVALID_CONTEXT)?;
        let stream = Stream { engine, ctx, kind, last: None, legacy_seen: None, closing: false };
        client.streams.insert(slot, stream);
        Ok((slot, client.last_seq.get(&slot).copied().unwrap_or(0)))
    }

    fn stream_destroy(&mut self, id: ClientId, slot: u32) -> Answer {
        let client = self.clients.get_mut(&id).ok_or(CuResult::INVALID_HANDLE)?;
        let stream = client.streams.get_mut(&slot).ok_or(CuResult::INVALID_HANDLE)?;
        stream.closing = true;
        if self.engine.pending(stream.engine).unwrap_or(0) == 0 {
            self.forget_stream(id, slot);
        }
        plain(Reply::Done)
    }

    /// Removes a stream whose work is done.
    pub(super) fn forget_stream(&mut self, id: ClientId, slot: u32) {
        let Some(stream) = self.clients.get_mut(&id).and_then(|client| client.streams.remove(&slot)) else {
            return;
        };
        let _ = self.engine.remove_stream(stream.engine);
    }

    // ---- memory ----

    fn memory_request(&mut self, id: ClientId, request: Request, descriptors: Vec<OwnedFd>) -> Answer {
        let memory = &mut self.memory;
        let client = self.clients.get_mut(&id).ok_or(CuResult::INVALID_HANDLE)?;
        if let Request::Alloc { bytes, .. } | Request::PhysCreate { bytes } = &request
            && !client.may_allocate(*bytes)
        {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let space = &mut client.space;
        let at = |(address, extents)| plain(Reply::Memory { address, extents });
        let done = |()| plain(Reply::Done);
        match request {
            Request::Alloc { ctx, bytes, kind } => {
                if !client.ctxs.contains_key(&ctx) && !matches!(kind, AllocKind::Pool(_)) {
                    return Err(CuResult::INVALID_CONTEXT);
                }
                space.allocate(memory, ctx, bytes, kind).and_then(at)
            }
            Request::Free { address } => space.free(memory, address).and_then(done),
            Request::HostMap { address, bytes } => {
                // A file with a name is opened when the process has ended, and not before.
                let name = descriptors.first().and_then(name_of);
                let shared = match descriptors.first() {
                    Some(fd) if name.is_none() => Some(
                        SharedMap::new(fd.as_fd(), bytes as usize).map_err(|_| CuResult::OUT_OF_MEMORY)?,
                    ),
                    _ => None,
                };
                if let Some(name) = name {
                    space.pinned_files.insert(address, name);
                }
                space.add_host(address, bytes, shared).and_then(done)
            }
            Request::HostUnmap { address } => space.remove_host(address).and_then(done),
            Request::PoolCreate { threshold } => plain(Reply::Pool(space.pool_create(threshold))),
            Request::PoolDestroy { pool } => space.pool_destroy(memory, pool).and_then(done),
            Request::PoolThreshold { pool, bytes } => space.pool_threshold(pool, bytes).and_then(done),
            Request::PoolTrim { pool, keep } => space.pool_trim(memory, pool, keep).and_then(done),
            Request::PoolResetHigh { pool, reserved, used } => {
                space.pool_reset_high(pool, reserved, used).and_then(done)
            }
            Request::PoolInfo { pool } => {
                space.pool_status(pool).and_then(|status| plain(Reply::PoolInfo(status)))
            }
            Request::Reserve { bytes, align, hint } => {
                space.reserve(bytes, align, hint).and_then(|address| at((address, Vec::new())))
            }
            Request::Unreserve { address, bytes } => space.unreserve(address, bytes).and_then(done),
            Request::Map { address, bytes, offset, phys } => {
                if !client.handles.contains_key(&phys) {
                    return Err(CuResult::INVALID_VALUE);
                }
                let extents = space.map(memory, address, bytes, offset, phys)?;
                at((address, extents))
            }
            Request::Unmap { address, bytes } => space.unmap(memory, address, bytes).and_then(done),
            Request::SetAccess { address, bytes, access } => {
                space.set_access(address, bytes, access).and_then(done)
            }
            Request::IpcExport { address } => {
                let (start, bytes) = space.allocation_of(address)?;
                let phys = space.phys_at(start)?;
                let secret = memory.secret(phys)?;
                let offset = space.offset_in_block(start)?;
                plain(Reply::Ipc { phys, secret, offset, bytes })
            }
            Request::IpcOpen { phys, secret, offset, bytes } => {
                if memory.secret(phys) != Ok(secret) {
                    return Err(CuResult::INVALID_VALUE);
                }
                memory.retain(phys)?;
                let opened = space.import(memory, phys, offset, bytes);
                if opened.is_err() {
                    memory.release(phys);
                }
                opened.and_then(at)
            }
            other => self.phys_request(id, other, descriptors),
        }
    }

    fn phys_request(&mut self, id: ClientId, request: Request, descriptors: Vec<OwnedFd>) -> Answer {
        let memory = &mut self.memory;
        let client = self.clients.get_mut(&id).ok_or(CuResult::INVALID_HANDLE)?;
        match request {
            Request::PhysCreate { bytes } => {
                if bytes == 0 || bytes % PAGE_BYTES != 0 {
                    return Err(CuResult::INVALID_VALUE);
                }
                let phys = memory.allocate(bytes)?;
                client.handles.insert(phys, 1);
                plain(Reply::Phys { phys, bytes })
            }
            Request::PhysRelease { phys } => {
                let count = client.handles.get_mut(&phys).ok_or(CuResult::INVALID_VALUE)?;
                *count -= 1;
                if *count == 0 {
                    client.handles.remove(&phys);
                    memory.release(phys);
                }
                plain(Reply::Done)
            }
            Request::PhysRetain { address } => {
                let phys = client.space.phys_at(address)?;
                self.hold(id, phys)
            }
            Request::PhysExport { phys } => {
                if !client.handles.contains_key(&phys) {
                    return Err(CuResult::INVALID_VALUE);
                }
                let (read_end, write_end) = pipe().map_err(|_| CuResult::OUT_OF_MEMORY)?;
                let inode = inode(&read_end).ok_or(CuResult::UNKNOWN)?;
                memory.retain(phys)?;
                self.exports.push(Exported { read_end, inode, phys });
                Ok((Reply::Done, Some(write_end)))
            }
            Request::PhysImport => {
                let named = descriptors.first().and_then(inode);
                let found = self.exports.iter().find(|export| Some(export.inode) == named);
                let phys = found.ok_or(CuResult::INVALID_VALUE)?.phys;
                self.hold(id, phys)
            }
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Gives a client a handle to a block: one reference, however many handles it has.
    fn hold(&mut self, id: ClientId, phys: u64) -> Answer {
        let bytes = self.memory.bytes(phys)?;
        let client = self.clients.get_mut(&id).ok_or(CuResult::INVALID_HANDLE)?;
        let count = client.handles.entry(phys).or_insert(0);
        if *count == 0 {
            self.memory.retain(phys)?;
        }
        *count += 1;
        plain(Reply::Phys { phys, bytes })
    }

    /// The set of a client with an MPS percentage, and no limit for the others. Which TPCs a
    /// percentage gives is the driver's secret; here they start at a place that depends on the
    /// client, so two clients of 50 % can share some, as on hardware.
    pub(super) fn percentage_set(&self, percentage: u32, client: u32) -> TpcSet {
        let count = self.spec.tpc_count();
        let per_tpc = self.spec.topology.sms_per_tpc();
        let sms = crate::mps::percentage_sms(percentage, self.spec.sm_count(), per_tpc);
        let start = client.wrapping_mul(0x9e37_79b9) % count;
        let mut set = TpcSet::EMPTY;
        for index in 0..sms.div_ceil(per_tpc).min(count) {
            set.insert(((start + index) % count) as u8);
        }
        set
    }
}

fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors into the local array.
    crate::shared::sys::check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok((crate::shared::sys::owned(ends[0])?, crate::shared::sys::owned(ends[1])?))
}

fn inode(fd: &OwnedFd) -> Option<u64> {
    let file = std::fs::File::from(fd.try_clone().ok()?);
    file.metadata().ok().map(|metadata| metadata.ino())
}

/// The path of a file that is not anonymous.
fn name_of(file: &OwnedFd) -> Option<PathBuf> {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    (!name.to_string_lossy().starts_with("/memfd:")).then_some(name)
}
