//! From commands in a ring to works of the engine, and from their completion to the program's view.

use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::qmd::{QMD_WORDS_MAX, read_disable_mask, read_field};
use partita_core::TpcSet;
use partita_interpreter::{Launch, Start};
use partita_sim::{CopyDirection, CopyWork, EventKind, KernelWork, StreamId, Work, WorkId};

use super::effects::{Fill, Reach};
use super::interpret::Execution;
use super::{Board, ClientId, Effect, Job, OnStart, ValueWait, kernels};
use crate::shared::command::{Command, KIND_COMMAND, KIND_LAUNCH, LaunchHead, Route};
use crate::shared::protocol::StreamKind;

/// Commands taken from one ring before the next ring's turn.
const COMMANDS_PER_PASS: usize = 1024;

impl Board {
    /// Advances time, takes commands, notifies clients. Returns whether anything happened.
    pub(super) fn pass(&mut self) -> bool {
        if self.stands_still() {
            return false;
        }
        let mut any = self.catch_up();
        if self.standstill.is_some() {
            // The streams of the client at fault take nothing any more; it gets its error later.
            return any;
        }
        let ids: Vec<ClientId> = self.clients.keys().copied().collect();
        for id in ids {
            any |= self.drain(id, COMMANDS_PER_PASS);
        }
        if any {
            self.catch_up();
        }
        any |= self.look_at_words();
        any |= self.finish_copies_of_the_dead();
        for id in std::mem::take(&mut self.dirty) {
            if let Some(client) = self.clients.get_mut(&id) {
                client.channel.announce_progress();
            }
        }
        any
    }

    /// Advances virtual time to real time, event by event, so that the board's own completions have
    /// the time of their event and not that of the end of the pass.
    fn catch_up(&mut self) -> bool {
        let now = self.page.now_ns();
        let mut any = self.interpret();
        let mut happened = Vec::new();
        while let Some(at) = self.engine.next_event().filter(|at| *at <= now) {
            if self.standstill.is_some() || self.holds_time() {
                return true;
            }
            self.engine.advance_into(at, &mut happened);
            any |= !happened.is_empty();
            for event in happened.drain(..) {
                self.happen(event.time, event.kind);
            }
            any |= self.interpret();
        }
        if self.holds_time() {
            return true;
        }
        if self.standstill.is_none() {
            self.engine.advance_into(now, &mut happened);
        }
        any |= !happened.is_empty();
        for event in happened.drain(..) {
            self.happen(event.time, event.kind);
        }
        any
    }

    fn happen(&mut self, time: u64, kind: EventKind) {
        match kind {
            EventKind::WorkStarted { work } => self.started(time, work),
            EventKind::WorkDone { work } => self.done(time, work),
            EventKind::BlockStarted { work, block, sm, start_ns } => {
                self.block_started(work, block, sm, start_ns);
            }
            EventKind::WorkKilled { work } => {
                self.executions.remove(&work);
                if let Some(job) = self.works.remove(&work)
                    && job.kernel.is_some()
                {
                    self.busy_changed(time, job.client, false);
                }
            }
            EventKind::GroupSwitched { .. } => {}
        }
    }

    /// A kernel of the client has started or ended.
    fn busy_changed(&mut self, time: u64, id: ClientId, started: bool) {
        self.busy.change(time, started);
        self.memory_busy.settle(time, || self.engine.memory_busy_ns());
        if let Some(client) = self.clients.get_mut(&id) {
            client.busy.change(time, started);
        }
    }

    fn started(&mut self, time: u64, work: WorkId) {
        let Some(job) = self.works.get_mut(&work) else { return };
        let (id, is_kernel) = (job.client, job.kernel.is_some());
        let on_start = std::mem::replace(&mut job.on_start, OnStart::Nothing);
        if is_kernel {
            self.busy_changed(time, id, true);
        }
        match on_start {
            OnStart::Nothing => {}
            OnStart::Host(token) | OnStart::HostCopy(token) => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.host.insert(token, work);
                    if matches!(on_start, OnStart::HostCopy(_)) {
                        client.copies.insert(token);
                    }
                    client.queue_host(token);
                }
            }
            OnStart::Event { slot, count } => {
                if self.events.reached(&self.page, slot, count, work) {
                    self.end(work);
                }
            }
            OnStart::Value { address, value, condition, wide } => {
                let wait = ValueWait { client: id, work, address, value, condition, wide };
                // A word that already matches does not block; the others are polled between passes.
                if self.is_met(&wait) {
                    self.end(work);
                } else {
                    self.value_waits.push(wait);
                }
            }
        }
    }

    /// Completes an external work. If it was removed with its stream, that is not an error.
    fn end(&mut self, work: WorkId) {
        let _ = self.engine.complete(work);
    }

    fn done(&mut self, time: u64, work: WorkId) {
        let Some(job) = self.works.remove(&work) else { return };
        self.executions.remove(&work);
        if job.kernel.is_some() {
            self.busy_changed(time, job.client, false);
        }
        // Nothing that follows a fault has an effect.
        if self.standstill.as_ref().is_some_and(|standstill| standstill.client == job.client) {
            return;
        }
        if let Err(code) = self.take_effect(time, work, &job) {
            self.fault(job.client, code);
            return;
        }
        let Some(client) = self.clients.get_mut(&job.client) else { return };
        if let Some(seq) = job.seq {
            let progress = &client.channel.head().streams[job.slot as usize];
            progress.completed.store(seq, Ordering::Release);
            self.dirty.insert(job.client);
            let idle = client
                .streams
                .get(&job.slot)
                .is_some_and(|stream| stream.closing && self.engine.pending(stream.engine).unwrap_or(0) == 0);
            if idle {
                self.forget_stream(job.client, job.slot);
            }
        }
    }

    /// A block of a program's kernel is on an SM: the interpreter may run it.
    fn block_started(&mut self, work: WorkId, block: u64, sm: u32, at_ns: u64) {
        let (Some(execution), Some(job)) = (self.executions.get_mut(&work), self.works.get(&work)) else {
            return;
        };
        let dense = self.smid_virtual && self.clients.get(&job.client).is_some_and(|c| c.mps.is_some());
        let per_tpc = self.spec.topology.sms_per_tpc();
        let sm = if dense { dense_sm(&job.enabled, sm, per_tpc) } else { sm };
        execution.place(Start { block, sm, at_ns });
    }

    fn take_effect(&mut self, time: u64, work: WorkId, job: &Job) -> Result<(), CuResult> {
        let Some(client) = self.clients.get_mut(&job.client) else { return Ok(()) };
        let reach = Reach { space: &client.space, memory: &self.memory, owner: client.owner };
        match &job.effect {
            Effect::Nothing => Ok(()),
            Effect::Kernel(run) => {
                let blocks = if run.wants_blocks() { self.engine.take_blocks(work) } else { None };
                let dense = self.smid_virtual && client.mps.is_some();
                let per_tpc = self.spec.topology.sms_per_tpc();
                run.finish(&reach, blocks.as_deref().unwrap_or_default(), |sm| {
                    if dense { dense_sm(&job.enabled, sm, per_tpc) } else { sm }
                })
            }
            Effect::Copy(rect) => reach.copy(rect),
            Effect::Fill(fill) => reach.fill(fill),
            Effect::WriteValue { address, value, wide } => reach.write_word(*address, *value, *wide),
            Effect::Free(address) => client.space.free(&mut self.memory, *address),
            Effect::Record { slot, count } => {
                for waiter in self.events.record(&self.page, *slot, *count, time) {
                    self.end(waiter);
                }
                // The event may be shared with other processes, and waiters sleep on their own
                // words.
                self.dirty.extend(self.clients.keys());
                Ok(())
            }
        }
    }

    /// Whether a word exists and satisfies a wait now.
    fn is_met(&self, wait: &ValueWait) -> bool {
        let Some(client) = self.clients.get(&wait.client) else { return false };
        let reach = Reach { space: &client.space, memory: &self.memory, owner: client.owner };
        reach.read_word(wait.address, wait.wide).is_ok_and(|word| satisfied(word, wait))
    }

    fn look_at_words(&mut self) -> bool {
        let mut ended = Vec::new();
        let mut failed = Vec::new();
        self.value_waits.retain(|wait| {
            let Some(client) = self.clients.get(&wait.client) else { return false };
            let reach = Reach { space: &client.space, memory: &self.memory, owner: client.owner };
            match reach.read_word(wait.address, wait.wide) {
                Ok(word) if satisfied(word, wait) => ended.push(wait.work),
                Ok(_) => return true,
                Err(code) => failed.push((wait.client, code)),
            }
            false
        });
        let any = !ended.is_empty() || !failed.is_empty();
        for work in ended {
            self.end(work);
        }
        for (id, code) in failed {
            self.fault(id, code);
        }
        any
    }

    /// Ends the copies of processes that have died: on hardware the GPU copies by itself. Nothing
    /// is left that could see the memory of the host.
    fn finish_copies_of_the_dead(&mut self) -> bool {
        let mut ended = Vec::new();
        for client in self.clients.values_mut().filter(|client| !client.copies.is_empty()) {
            if client.is_dead() {
                let (copies, host) = (std::mem::take(&mut client.copies), &mut client.host);
                ended.extend(copies.iter().filter_map(|token| host.remove(token)));
            }
        }
        ended.iter().for_each(|work| self.end(*work));
        !ended.is_empty()
    }

    /// Refuses a client's further calls, and breaks nobody at its end. Its work goes on as long as
    /// some process holds its connection, as on hardware.
    pub(super) fn leave(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.fault == 0 {
            client.fault = CuResult::DEINITIALIZED.0;
            client.channel.head().fault.0.store(client.fault, Ordering::SeqCst);
        }
    }

    /// Fails all GPU work of a client with a sticky error.
    pub(super) fn fail(&mut self, id: ClientId, code: CuResult) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.fault == 0 {
            client.fault = code.0;
            self.show_fault(id);
        }
    }

    /// Shows a client the fault that it has.
    pub(super) fn show_fault(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else { return };
        client.channel.head().fault.0.store(client.fault, Ordering::SeqCst);
        self.kill_streams(id);
        self.dirty.insert(id);
    }

    /// Ends all GPU work of a client.
    pub(super) fn kill_streams(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let streams: Vec<StreamId> = client
            .streams
            .values()
            .map(|stream| stream.engine)
            .chain(client.graphs.values().flat_map(|graph| graph.lanes.iter().copied()))
            .collect();
        client.backlog.clear();
        client.host.clear();
        client.copies.clear();
        self.executions.retain(|_, execution| execution.client != id);
        for stream in streams {
            // A stream that is already removed has nothing to kill.
            let _ = self.engine.kill_stream(stream);
        }
        self.value_waits.retain(|wait| wait.client != id);
    }

    // ---- commands ----

    /// Takes commands of one client, at most `limit`.
    pub(super) fn drain(&mut self, id: ClientId, limit: usize) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return false };
        client.flush_host();
        if client.consumer.is_empty(&client.channel) {
            return false;
        }
        let mut consumer = std::mem::take(&mut client.consumer);
        for _ in 0..limit {
            let Some(client) = self.clients.get(&id) else { return true };
            match consumer.take(&client.channel) {
                Ok(None) => break,
                Ok(Some((record, body))) => {
                    let outcome = self.command(id, record.kind, record.stream, record.seq, body);
                    if let Err(code) = outcome {
                        self.fail(id, code);
                    }
                }
                Err(_) => {
                    self.fail(id, CuResult::LAUNCH_FAILED);
                    break;
                }
            }
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.consumer = consumer;
            if client.channel.head().waiters.0.load(Ordering::SeqCst) != 0 {
                // A client may wait for room.
                self.dirty.insert(id);
            }
        }
        true
    }

    fn command(&mut self, id: ClientId, kind: u32, slot: u32, seq: u64, body: &[u8]) -> Result<(), CuResult> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if client.fault != 0 {
            return Ok(());
        }
        let command = match kind {
            KIND_LAUNCH => {
                let (head, qmd, params) = LaunchHead::split(body).ok_or(CuResult::LAUNCH_FAILED)?;
                self.enter(id, slot, seq)?;
                let stream = self.engine_stream(id, slot)?;
                return self.launch(id, slot, stream, Some(seq), &head, qmd, params).map(drop);
            }
            KIND_COMMAND => postcard::from_bytes::<Command>(body).map_err(|_| CuResult::LAUNCH_FAILED)?,
            _ => return Err(CuResult::LAUNCH_FAILED),
        };
        if let Command::HostDone { token } = command {
            client.copies.remove(&token);
            if let Some(work) = client.host.remove(&token) {
                self.end(work);
            }
            return Ok(());
        }
        self.enter(id, slot, seq)?;
        if let Command::Graph { graph } = command {
            return self.run_graph(id, slot, seq, graph);
        }
        let stream = self.engine_stream(id, slot)?;
        self.submit_command(id, slot, stream, Some(seq), &command).map(drop)
    }

    pub(super) fn engine_stream(&self, id: ClientId, slot: u32) -> Result<StreamId, CuResult> {
        let client = self.clients.get(&id).ok_or(CuResult::INVALID_HANDLE)?;
        client.streams.get(&slot).map(|stream| stream.engine).ok_or(CuResult::INVALID_HANDLE)
    }

    /// Orders a command after those that the rules of the legacy default stream require.
    fn enter(&mut self, id: ClientId, slot: u32, seq: u64) -> Result<(), CuResult> {
        let client = self.clients.get_mut(&id).ok_or(CuResult::INVALID_HANDLE)?;
        client.last_seq.insert(slot, seq);
        let stream = client.streams.get(&slot).ok_or(CuResult::INVALID_HANDLE)?;
        let engine = stream.engine;
        let mut before = Vec::new();
        match stream.kind {
            StreamKind::NonBlocking => return Ok(()),
            StreamKind::Legacy => {
                let others = client
                    .streams
                    .values()
                    .filter(|other| other.ctx == stream.ctx && other.kind == StreamKind::Blocking);
                before.extend(others.filter_map(|other| other.last));
            }
            StreamKind::Blocking => {
                let legacy = client.ctxs.get(&stream.ctx).and_then(|ctx| client.streams.get(&ctx.legacy));
                let last = legacy.and_then(|legacy| legacy.last);
                if last.is_some() && last != stream.legacy_seen {
                    before.extend(last);
                    if let Some(stream) = client.streams.get_mut(&slot) {
                        stream.legacy_seen = last;
                    }
                }
            }
        }
        before.retain(|work| !self.engine.is_done(*work));
        for work in before {
            self.engine.submit(engine, Work::WaitOn(work)).map_err(|_| CuResult::INVALID_HANDLE)?;
        }
        Ok(())
    }

    pub(super) fn submit(
        &mut self,
        stream: StreamId,
        work: impl Into<Work>,
        job: Job,
    ) -> Result<WorkId, CuResult> {
        let (id, slot) = (job.client, job.slot);
        let work = self.engine.submit(stream, work).map_err(|_| CuResult::LAUNCH_FAILED)?;
        self.works.insert(work, job);
        if let Some(client) = self.clients.get_mut(&id)
            && let Some(owner) = client.streams.get_mut(&slot)
            && owner.engine == stream
        {
            owner.last = Some(work);
        }
        Ok(work)
    }

    /// Submits a command as works of a stream; the last one is returned and carries `seq`.
    pub(super) fn submit_command(
        &mut self,
        id: ClientId,
        slot: u32,
        stream: StreamId,
        seq: Option<u64>,
        command: &Command,
    ) -> Result<WorkId, CuResult> {
        let job = |seq, on_start, effect| Job {
            client: id,
            slot,
            seq,
            on_start,
            effect,
            kernel: None,
            enabled: TpcSet::EMPTY,
        };
        let nothing = || OnStart::Nothing;
        match *command {
            Command::HostCopy { route, bytes, token } => {
                let seq_here = if token == 0 { seq } else { None };
                let copy = transfer(id, route, bytes);
                let copied = self.submit(stream, copy, job(seq_here, nothing(), Effect::Nothing))?;
                if token == 0 {
                    return Ok(copied);
                }
                self.submit(stream, Work::External, job(seq, OnStart::HostCopy(token), Effect::Nothing))
            }
            Command::Copy { route, rect } => self.submit(
                stream,
                transfer(id, route, rect.bytes()),
                job(seq, nothing(), Effect::Copy(rect)),
            ),
            Command::Fill { dst, pitch, width, height, value, element_bytes } => {
                let fill = Fill { dst, pitch, width, height, value, element_bytes };
                let bytes = width.saturating_mul(height);
                let work = CopyWork { bytes, direction: CopyDirection::Fill, client: id };
                self.submit(stream, work, job(seq, nothing(), Effect::Fill(fill)))
            }
            Command::Record { event, count } => {
                let effect = Effect::Record { slot: event, count };
                let work = self.submit(stream, Work::Marker, job(seq, nothing(), effect))?;
                self.events.will_record(event, count, work);
                Ok(work)
            }
            Command::Wait { event, count } => {
                let (work, on_start) = match self.events.recorder(event, count) {
                    Some(recorder) => (Work::WaitOn(recorder), nothing()),
                    None => (Work::External, OnStart::Event { slot: event, count }),
                };
                self.submit(stream, work, job(seq, on_start, Effect::Nothing))
            }
            Command::Host { token } => {
                self.submit(stream, Work::External, job(seq, OnStart::Host(token), Effect::Nothing))
            }
            Command::WaitValue { address, value, condition, wide } => {
                let on_start = OnStart::Value { address, value, condition, wide };
                self.submit(stream, Work::External, job(seq, on_start, Effect::Nothing))
            }
            Command::WriteValue { address, value, wide } => {
                let effect = Effect::WriteValue { address, value, wide };
                self.submit(stream, Work::Marker, job(seq, nothing(), effect))
            }
            Command::Free { address } => {
                self.submit(stream, Work::Marker, job(seq, nothing(), Effect::Free(address)))
            }
            Command::Mark | Command::HostDone { .. } | Command::Graph { .. } => {
                self.submit(stream, Work::Marker, job(seq, nothing(), Effect::Nothing))
            }
        }
    }

    /// Submits a launch: everything that the hardware would read from the QMD is read from the QMD.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn launch(
        &mut self,
        id: ClientId,
        slot: u32,
        stream: StreamId,
        seq: Option<u64>,
        head: &LaunchHead,
        qmd: &[u8],
        params: &[u8],
    ) -> Result<WorkId, CuResult> {
        let mut image = [0u32; QMD_WORDS_MAX];
        for (word, bytes) in image.iter_mut().zip(qmd.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let layout = self.qmd;
        if !layout.is_version_of(&image) {
            return Err(CuResult::ILLEGAL_INSTRUCTION);
        }
        let unreadable = |_| CuResult::ILLEGAL_INSTRUCTION;
        let launch = layout.shape(&image).map_err(unreadable)?;
        let block = layout.block.map(|field| read_field(&image, field).unwrap_or(0));
        let program = layout.program(&image).map_err(unreadable)?;
        let shape = kernels::Shape { grid: launch.grid, block };
        let client = self.clients.get(&id).ok_or(CuResult::INVALID_HANDLE)?;
        let function = client.functions.get(&program).ok_or(CuResult::INVALID_PC)?;
        let ctx = client.streams.get(&slot).and_then(|stream| client.ctxs.get(&stream.ctx));
        let allowed = ctx.map_or(client.allowed, |ctx| ctx.allowed & client.allowed);
        let mut kernel = KernelWork::new(
            shape.blocks(),
            shape.threads(),
            0,
            self.enabled(read_disable_mask(&image, layout).as_ref()) & allowed,
        );
        kernel.regs_per_thread = read_field(&image, layout.registers_per_thread).unwrap_or(0);
        // The engine adds the system's reserve for each block; the descriptor already includes it.
        let shared_bytes = layout.shared_memory.read_bytes(&image).unwrap_or(0);
        kernel.smem_per_block = shared_bytes.saturating_sub(self.spec.sm.shared_reserved_per_block_bytes);
        kernel.cluster_blocks = launch.cluster_blocks().max(1);
        kernel.cooperative = launch.cooperative.unwrap_or(head.flags & LaunchHead::COOPERATIVE != 0);
        let known = match &function.program {
            Some(_) => None,
            None => kernels::prepare(&self.spec, &function.spec.name, shape, params, &mut kernel)?,
        };
        let mut execution = None;
        let effect = match known {
            Some(Some(run)) => Effect::Kernel(Box::new(run)),
            Some(None) => Effect::Nothing,
            None => {
                kernel.block_ns = kernels::declared_ns().unwrap_or(kernels::UNKNOWN_NS);
                if let Some(program) = &function.program {
                    let program = program.kernel(&function.spec.name)?;
                    kernel.open = true;
                    self.launches += 1;
                    let launch = Launch {
                        dynamic_shared: kernel.smem_per_block.saturating_sub(program.shared_bytes()),
                        kernel: program,
                        params: params.to_vec(),
                        grid: shape.grid,
                        block: shape.block,
                        number: self.launches,
                        sms: self.spec.sm_count(),
                        clock_khz: self.spec.clocks.sm_khz,
                    };
                    execution = Some(Execution::new(id, launch, kernels::declared_ns()));
                }
                Effect::Nothing
            }
        };
        let enabled = kernel.enabled;
        let block_ns = Some(kernel.block_ns);
        let job =
            Job { client: id, slot, seq, on_start: OnStart::Nothing, effect, kernel: block_ns, enabled };
        let work = self.submit(stream, kernel, job)?;
        self.executions.extend(execution.map(|execution| (work, execution)));
        Ok(work)
    }

    /// The logical TPCs that a disable mask leaves. Bits without a TPC have no effect, and a TPC
    /// beyond the mask cannot be disabled.
    fn enabled(&self, disable: Option<&[u32; 8]>) -> TpcSet {
        let all = self.spec.topology.all();
        let Some(disable) = disable else { return all };
        let mut enabled = TpcSet::EMPTY;
        for (logical, tpc) in self.spec.topology.tpcs().iter().enumerate() {
            let (word, bit) = (usize::from(tpc.physical) / 32, tpc.physical % 32);
            if disable.get(word).is_none_or(|word| word >> bit & 1 == 0) {
                enabled.insert(logical as u8);
            }
        }
        enabled
    }
}

/// The number of an SM among those of some TPCs.
fn dense_sm(enabled: &TpcSet, sm: u32, per_tpc: u32) -> u32 {
    let below = enabled.iter().take_while(|tpc| u32::from(*tpc) < sm / per_tpc).count() as u32;
    below * per_tpc + sm % per_tpc
}

fn transfer(client: ClientId, route: Route, bytes: u64) -> CopyWork {
    let direction = match route {
        Route::HostToDevice => CopyDirection::ToDevice,
        Route::DeviceToHost | Route::HostToHost => CopyDirection::ToHost,
        Route::DeviceToDevice => CopyDirection::Within,
    };
    CopyWork { bytes, direction, client }
}

/// Whether a word satisfies a wait; the conditions are those of `CUstreamWaitValue_flags`.
fn satisfied(word: u64, wait: &ValueWait) -> bool {
    match wait.condition {
        0 if wait.wide => (word.wrapping_sub(wait.value) as i64) >= 0,
        0 => (word as u32).wrapping_sub(wait.value as u32) as i32 >= 0,
        1 => word == wait.value,
        2 => word & wait.value != 0,
        _ => {
            let all = if wait.wide { u64::MAX } else { u64::from(u32::MAX) };
            (word | wait.value) & all != all
        }
    }
}
