use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[test]
fn shares_follow_the_weights_and_leave_the_reserve() {
    assert_eq!(shares(128, &[33]), None);
    assert_eq!(shares(128, &[33, 33]), Some(alloc::vec![60, 60]));
    assert_eq!(shares(128, &[60, 6]), Some(alloc::vec![107, 12]));
    // A tenant without its own TPCs, such as a client of an MPS partition, has the smallest share.
    assert_eq!(shares(128, &[0, 10]), Some(alloc::vec![2, 118]));
    assert_eq!(shares(16, &[1; 40]), Some(alloc::vec![2; 40]));
}

#[test]
fn processes_divide_the_share_of_their_tenant() {
    assert_eq!([0, 1, 2, 3, 100].map(|processes| of_process(60, processes)), [60, 60, 30, 20, 2]);
}

#[test]
fn the_width_of_common_graphs() {
    let row: Vec<_> = (1..9).map(|to| (to - 1, to)).collect();
    assert_eq!(width(&[1; 9], &row), Some(1));
    assert_eq!(width(&[1; 9], &[]), Some(9));
    assert_eq!(width(&[0; 9], &row), Some(0));
    // Levels of four kernels, each after all of the level before, directly or through a join.
    let levels = (0..5).flat_map(|level| {
        (0..4).flat_map(move |from| (0..4).map(move |to| (4 * level + from, 4 * level + 4 + to)))
    });
    assert_eq!(width(&[1; 24], &levels.collect::<Vec<_>>()), Some(4));
    let mut kernels = alloc::vec![1; 9];
    kernels[4] = 0;
    let joined: Vec<_> = (0..4).map(|from| (from, 4)).chain((5..9).map(|to| (4, to))).collect();
    assert_eq!(width(&kernels, &joined), Some(4));
    // A node that is a graph itself.
    assert_eq!(width(&[1, 3, 2], &[(0, 1), (1, 2)]), Some(3));
    assert_eq!(width(&[1; 2], &[(0, 1), (1, 0)]), None);
    assert_eq!(width(&[1; 2], &[(0, 2)]), None);
}

/// The most kernels of which none waits for another, by trying all sets.
fn widest(kernels: &[u32], edges: &[(usize, usize)]) -> u32 {
    let count = kernels.len();
    let mut reaches = alloc::vec![0u32; count];
    for node in (0..count).rev() {
        for &(_, to) in edges.iter().filter(|edge| edge.0 == node) {
            reaches[node] |= 1 << to | reaches[to];
        }
    }
    let is_alone = |set: u32| (0..count).all(|node| set >> node & 1 == 0 || reaches[node] & set == 0);
    let kernels_of =
        |set: u32| -> u32 { (0..count).filter(|node| set >> node & 1 == 1).map(|node| kernels[node]).sum() };
    (0..1u32 << count).filter(|&set| is_alone(set)).map(kernels_of).max().unwrap_or(0)
}

/// What a program does.
#[derive(Debug, Clone, Copy)]
enum Step {
    Launch {
        stream: u32,
        width: u32,
    },
    /// Of the launches that run, one ends.
    End(usize),
    /// The program waits until everything has ended.
    Wait,
    Limit(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..40u32).prop_map(|stream| Step::Launch { stream, width: 1 }),
        1 => (0..40u32, 2..9u32).prop_map(|(stream, width)| Step::Launch { stream, width }),
        5 => any::<usize>().prop_map(Step::End),
        1 => Just(Step::Wait),
        1 => (2..20u32).prop_map(Step::Limit),
    ];
    vec(step, 1..400)
}

/// A launch, what it waits for, its kernels that run at once, and the limit when it was made.
type Made = (Launch, Vec<Launch>, u32, u32);

/// A GPU with streams, and the queues in front of it.
#[derive(Default)]
struct Program {
    queues: Queues,
    limit: u32,
    /// Launches in each stream that have not ended.
    streams: BTreeMap<u32, VecDeque<Made>>,
    counts: BTreeMap<u32, u32>,
    ended: BTreeMap<u32, u32>,
    made: Vec<Launch>,
    /// Whether the limit became smaller since all had ended.
    shrank: bool,
}

impl Program {
    fn has_ended(&self, launch: Launch) -> bool {
        self.ended.get(&launch.stream).is_some_and(|ended| *ended >= launch.count)
    }

    fn running(&self) -> Vec<(u32, u32, u32)> {
        let heads = self.streams.values().filter_map(VecDeque::front);
        let free = heads.filter(|(_, behind, ..)| behind.iter().all(|launch| self.has_ended(*launch)));
        free.map(|(launch, _, width, limit)| (launch.stream, *width, *limit)).collect()
    }

    fn launch(&mut self, stream: u32, width: u32) {
        let count = self.counts.entry(stream).or_default();
        *count += 1;
        let launch = Launch { stream, count: *count };
        let mut behind = Vec::new();
        // Uncounted streams may take half of the queues.
        let width = width.min(self.limit / 2).max(1);
        if !self.queues.is_free(stream, width, self.limit) {
            let ended = self.ended.clone();
            let has_ended =
                |launch: Launch| ended.get(&launch.stream).is_some_and(|ended| *ended >= launch.count);
            let entered: Vec<Entered> =
                (0..width).filter_map(|_| self.queues.enter(stream, None, self.limit, has_ended)).collect();
            assert!(!entered.is_empty(), "one queue at least can be waited for");
            for Entered { queue, behind: before } in entered {
                behind.extend(before);
                self.queues.launched(queue, launch);
            }
        }
        // Nothing waits for what is yet to come.
        assert!(behind.iter().all(|before| self.made.contains(before)));
        self.made.push(launch);
        self.streams.entry(stream).or_default().push_back((launch, behind, width, self.limit));
    }

    fn end(&mut self, which: usize) {
        let running = self.running();
        if let Some(&(stream, ..)) = running.get(which % running.len().max(1)) {
            let (launch, ..) = self.streams.get_mut(&stream).unwrap().pop_front().unwrap();
            self.ended.insert(stream, launch.count);
        }
    }

    fn end_all(&mut self) {
        while self.streams.values().any(|stream| !stream.is_empty()) {
            assert!(!self.running().is_empty(), "all wait for each other");
            self.end(0);
        }
    }
}

proptest! {
    #[test]
    fn shares_fit_into_the_slots(slots in 1..300u32, weights in vec(0..100u32, 2..50)) {
        let shares = shares(slots, &weights).unwrap();
        let sum: u32 = shares.iter().sum();
        prop_assert!(shares.iter().all(|&share| share >= UNCOUNTED));
        prop_assert!(sum <= slots.saturating_sub(RESERVE).max(UNCOUNTED * weights.len() as u32));
        for (a, b) in weights.iter().zip(&shares).zip(weights.iter().zip(&shares).skip(1)) {
            prop_assert!(a.0 > b.0 || a.1 <= b.1, "more weight, no smaller share");
        }
    }

    #[test]
    fn no_more_run_than_the_limit_and_none_waits_for_ever(steps in steps()) {
        let mut program = Program { limit: 8, ..Program::default() };
        for step in steps {
            match step {
                Step::Launch { stream, width } => program.launch(stream, width),
                Step::End(which) => program.end(which),
                Step::Wait => {
                    program.end_all();
                    let ended = &program.ended;
                    assert!(program.queues.reset_if_idle(|launch| {
                        ended.get(&launch.stream).is_some_and(|ended| *ended >= launch.count)
                    }));
                    program.shrank = false;
                }
                Step::Limit(limit) => {
                    program.shrank |= limit < program.limit;
                    program.limit = limit;
                }
            }
            // A launch made under a larger limit may still run, and a launch may have found only
            // queues of uncounted streams.
            let running = program.running();
            let most = running.iter().map(|(_, _, limit)| *limit).chain([program.limit]).max().unwrap();
            let sum: u32 = running.iter().map(|(_, width, _)| width).sum();
            prop_assert!(sum <= most + u32::from(program.shrank), "{sum} of {most}");
        }
        program.end_all();
    }

    #[test]
    fn a_width_is_no_less_than_what_can_run_at_once(
        kernels in vec(0..4u32, 1..9),
        picked in vec((0..8usize, 0..8usize), 0..20),
    ) {
        let edges: Vec<(usize, usize)> = picked
            .into_iter()
            .filter(|&(from, to)| from < to && to < kernels.len())
            .collect();
        prop_assert!(width(&kernels, &edges).unwrap() >= widest(&kernels, &edges));
    }
}
