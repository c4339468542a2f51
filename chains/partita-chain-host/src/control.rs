//! The thread that divides a chain's compute units.

use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use partita_core::Count;
use partita_frames::ChainFile;
use partita_host::error::Error;
use partita_steering::{
    self as core, Actuator, Allocation, Controller, ControllerOptions, PublishedOptions, Record,
    SteadyOptions, Stop,
};

use super::news;
use super::plant::{Interruption, RunningChain};
use super::shared::Shared;
use super::state::Phase;
use super::steer::SteeringRequests;
use super::{Algorithm, Definition, Steering};

/// Divides a chain's compute units until the chain ends.
#[derive(Debug)]
pub(super) struct Control {
    chain: RunningChain,
    steering: Steering,
    shared: Arc<Shared>,
}

impl Control {
    pub(super) fn new(
        file: ChainFile,
        limits: &[CString],
        dir: &Path,
        definition: &Definition,
        ending: &Arc<AtomicBool>,
        shared: &Arc<Shared>,
    ) -> Result<Self, Error> {
        let chain = RunningChain::new(
            file,
            limits,
            Arc::clone(ending),
            SteeringRequests::of(dir),
            Duration::from_millis(definition.period_ms.into()),
            Arc::clone(shared),
        )?;
        Ok(Self { chain, steering: Steering::Algorithm(definition.algorithm), shared: Arc::clone(shared) })
    }

    /// Runs until the chain ends.
    pub(super) fn run(mut self) {
        loop {
            let stopped = match self.steering.clone() {
                Steering::Tpcs(tpcs) => self.hold(&tpcs),
                Steering::Algorithm(Algorithm::None) => {
                    let all = self.chain.room().whole();
                    self.hold(all.tpcs())
                }
                Steering::Algorithm(Algorithm::Steady) => {
                    self.optimize(core::Algorithm::Steady(SteadyOptions::default()))
                }
                Steering::Algorithm(Algorithm::Published) => {
                    self.optimize(core::Algorithm::Published(PublishedOptions::default()))
                }
            };
            match (stopped, self.chain.interruption.take()) {
                (Stop::Asked, Some(Interruption::Ending) | None) => return,
                (Stop::Asked, Some(Interruption::Steering)) => self.take_request(),
                (Stop::Asked, Some(Interruption::Resized)) => {
                    let tpcs = self.chain.tpcs();
                    self.shared.change(true, |state, at_s| {
                        state.tpcs_of_chain = tpcs.iter().sum();
                        for (gpu, &tpcs) in state.gpus.iter_mut().zip(&tpcs) {
                            gpu.tpcs = tpcs;
                        }
                        let each: Vec<String> = tpcs.iter().map(u32::to_string).collect();
                        let line = match tpcs.as_slice() {
                            [tpcs] => format!("the chain has {} now", Count(*tpcs, "TPC")),
                            _ => format!("the chain has {} TPCs on its GPUs now", each.join(" and ")),
                        };
                        state.note(at_s, line, None);
                    });
                }
                (stop, _) => {
                    // The current division stays.
                    self.shared.change(true, |state, at_s| {
                        state.phase = Phase::Off;
                        state.note(at_s, stop.to_string(), None);
                    });
                    return;
                }
            }
        }
    }

    fn take_request(&mut self) {
        let Some(request) = self.chain.requests().next() else { return };
        let checked = request.map_err(|error| error.to_string()).and_then(|request| {
            request.check(self.chain.name(), self.chain.components()).map_err(|error| error.to_string())?;
            Ok(request)
        });
        self.shared.change(true, |state, at_s| match &checked {
            Ok(request) => {
                state.steering = request.clone();
                state.note(at_s, "steered otherwise".to_owned(), None);
            }
            Err(error) => state.note(at_s, format!("an invalid steering request: {error}"), None),
        });
        if let Ok(request) = checked {
            self.steering = request;
        }
    }

    fn set_phase(&self, phase: Phase) {
        self.shared.change(true, |state, _| state.phase = phase);
    }

    /// Gives the components these TPCs and does not change them. Returns on an interruption.
    fn hold(&mut self, tpcs: &[u32]) -> Stop {
        self.set_phase(Phase::Off);
        let applied = Allocation::new(tpcs)
            .map_err(|error| Stop::Failed { reason: error.to_string() })
            .and_then(|allocation| self.chain.apply(&allocation));
        if let Err(stop) = applied {
            return stop;
        }
        if let Some(applied) = &self.chain.applied {
            self.shared.change(true, |state, at_s| {
                let text = format!("divided without a search: {applied}");
                state.note(at_s, text, Some(applied.tpcs().to_vec()));
            });
        }
        self.watch()
    }
}

impl Control {
    /// Lets an algorithm divide the compute units. Returns on an interruption.
    fn optimize(&mut self, algorithm: core::Algorithm) -> Stop {
        let room = self.chain.room();
        // Starts from the current division if there are as many TPCs; otherwise every component
        // gets all TPCs of its GPU, as with MPS alone.
        let before = self.chain.applied.as_ref().map(|applied| room.within(applied));
        let start = before.unwrap_or_else(|| room.whole());
        self.set_phase(Phase::Waiting);
        if let Err(stop) = self.chain.apply(&start) {
            return stop;
        }
        let options = ControllerOptions { algorithm, ..ControllerOptions::default() };
        let mut controller = Controller::new(start, room, options);
        let mut told = 0;
        loop {
            let step = controller.step(&mut self.chain);
            let news: Vec<Record> =
                controller.records().filter(|record| record.period > told).cloned().collect();
            told = controller.periods();
            // A search changes the level, but the chain is as settled as before.
            let knows_level = controller.level_frames_per_s().is_some() || controller.records().len() > 0;
            let has_news = !news.is_empty();
            self.shared.change(has_news, |state, at_s| {
                state.phase = if knows_level { Phase::Settled } else { Phase::Waiting };
                for record in news {
                    let (text, tpcs) = news::of(&record.what);
                    state.note(at_s, text, tpcs);
                }
            });
            if let Err(stop) = step {
                return stop;
            }
        }
    }

    fn watch(&mut self) -> Stop {
        loop {
            if let Err(stop) = self.chain.pass_period() {
                return stop;
            }
        }
    }
}
