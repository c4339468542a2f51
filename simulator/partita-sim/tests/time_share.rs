//! The control law of `partita_core::time` against the model: a tenant's stream passes a gate
//! before every unit of kernels, and a keeper opens and closes it. As on a real GPU, the keeper
//! sees only whether the stream stands at its gate, and only when it looks.

use partita_core::time::{Budget, Law, Pacer, Policy, Situation};
use partita_sim::{Engine, EventKind, GroupKind, KernelWork, StreamId, Time, Work, WorkId, catalogue};

const US: Time = 1000;
const MS: Time = 1_000_000;
const S: Time = 1_000_000_000;

/// The keeper's delay, as of a sleeping thread.
const LATE: Time = 60 * US;
/// How often it checks whether a unit that passed the closing gate is over.
const LOOK: Time = 50 * US;

/// A program that always has work: kernels of these lengths, in turn, each on the whole GPU.
struct Program {
    engine: Engine,
    stream: StreamId,
    lengths: Vec<Time>,
    next: usize,
    pacer: Pacer,
    /// The queued gates, each with the length of the unit after it.
    gates: std::collections::VecDeque<(WorkId, Time)>,
    waits: Option<WorkId>,
    done_ns: Time,
    running_ns: Time,
}

impl Program {
    fn new(lengths: &[Time]) -> Self {
        let spec = catalogue::device("sim:h200").expect("a device of the catalogue");
        let mut engine = Engine::new(&spec, 7);
        let group = engine.add_group(GroupKind::Own);
        let stream = engine.add_stream(group, 0).expect("a stream");
        let lengths = lengths.to_vec();
        Self {
            engine,
            stream,
            lengths,
            next: 0,
            pacer: Pacer::default(),
            gates: [].into(),
            waits: None,
            done_ns: 0,
            running_ns: 0,
        }
    }

    /// Keeps units queued.
    fn submit(&mut self) {
        while self.gates.len() < 4 {
            let gate = self.engine.submit(self.stream, Work::External).expect("a gate");
            let mut unit = 0;
            for _ in 0..self.pacer.launches() {
                let length = self.lengths[self.next % self.lengths.len()];
                self.next += 1;
                let all = self.engine.spec().topology.all();
                let kernel = KernelWork::new(132 * 2, 1024, length, all);
                self.engine.submit(self.stream, kernel).expect("a kernel");
                self.pacer.observe(length);
                unit += length;
            }
            self.gates.push_back((gate, unit));
        }
    }

    /// Lets the GPU run until `until`, through gates while they are open.
    fn run(&mut self, until: Time, open: bool) {
        loop {
            self.submit();
            if open && let Some(gate) = self.waits.take() {
                self.engine.complete(gate).expect("a gate that waits");
                self.running_ns = self.gates.pop_front().expect("it was queued").1;
                continue;
            }
            // One event at a time: a gate that is reached while it is open delays nothing.
            let step = self.engine.next_event().filter(|&at| at <= until).unwrap_or(until);
            for event in self.engine.advance(step) {
                if let EventKind::WorkStarted { work } = event.kind
                    && self.gates.front().is_some_and(|gate| gate.0 == work)
                {
                    self.waits = Some(work);
                    self.done_ns += std::mem::take(&mut self.running_ns);
                }
            }
            if step == until && (!open || self.waits.is_none()) {
                return;
            }
        }
    }

    fn is_running(&self) -> bool {
        self.waits.is_none()
    }
}

/// How many thousandths of the time the program's kernels took, by their own lengths. Without a
/// limit it is less than 1000: there are gaps between kernels of a stream.
fn achieved(law: Law, lengths: &[Time], for_ns: Time) -> f64 {
    let mut program = Program::new(lengths);
    program.run(0, false);
    let mut budget = Budget::new(law, 0);
    let mut open = true;
    let (mut now, mut wake) = (0, LATE);
    while now < for_ns {
        let was_running = program.is_running() || open;
        now += wake;
        program.run(now, open);
        let busy_ns = if was_running { wake } else { 0 };
        let decision = budget.look(now, Situation { busy_ns, wants: true, others_want: true });
        open = decision.open;
        let awaited = decision.look_in_ns.unwrap_or(MS) + LATE;
        wake = if !open && program.is_running() { LOOK } else { awaited };
    }
    program.done_ns as f64 / now as f64 * 1000.0
}

#[test]
fn shares_are_met_for_short_and_long_kernels() {
    let kinds: [(&'static str, &'static [Time], Time); 9] = [
        ("10 us", &[10 * US], 2 * S),
        ("50 us", &[50 * US], 4 * S),
        ("1 ms", &[MS], 8 * S),
        ("10 ms", &[10 * MS], 16 * S),
        ("100 ms", &[100 * MS], 60 * S),
        ("1 s", &[S], 400 * S),
        ("50 us, 10 ms", &[50 * US, 10 * MS], 16 * S),
        ("a burst, then 20 ms", &[20 * US, 20 * US, 20 * US, 20 * US, 20 * MS], 16 * S),
        ("10 us to 100 ms", &[10 * US, 100 * US, MS, 10 * MS, 100 * MS], 60 * S),
    ];
    println!(
        "achieved share of the unlimited rate, in percent, by limit\n{:22}     10 %   25 %   50 %   75 %",
        "kernels"
    );
    const SHARES: [u32; 4] = [100, 250, 500, 750];
    let rows = std::thread::scope(|scope| {
        let run = |(name, lengths, for_ns): (&'static str, &'static [Time], Time)| {
            scope.spawn(move || {
                let rate = |share| achieved(Law::new(share, Policy::Hard), lengths, for_ns);
                let unlimited = rate(1000);
                (name, SHARES.map(|share| rate(share) / unlimited * 100.0))
            })
        };
        kinds.map(run).map(|kind| kind.join().expect("a simulation"))
    });
    let mut errors = Vec::new();
    for (name, row) in rows {
        errors
            .extend(row.iter().zip(SHARES).map(|(percent, share)| (percent - f64::from(share) / 10.0).abs()));
        println!("{name:22}   {:6.2} {:6.2} {:6.2} {:6.2}", row[0], row[1], row[2], row[3]);
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let worst = errors.iter().copied().fold(0.0, f64::max);
    println!("absolute error in points: mean {mean:.2}, worst {worst:.2}");
    assert!(mean <= 2.0 && worst <= 3.0, "mean {mean}, worst {worst}");
}
