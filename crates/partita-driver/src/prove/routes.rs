//! The ways in which kernels are launched.

use core::fmt;

/// How a kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// By a plain launch on a stream of the lowest priority, in blocks of 32 threads.
    LowPriority,
    /// On a stream of the default priority.
    Stream,
    /// On a stream of the highest priority.
    HighPriority,
    /// In blocks of 64 to 1024 threads.
    LargeBlocks,
    /// As nodes of a graph that is instantiated once and updated for each mask.
    Graph,
    /// In clusters.
    Cluster,
    /// As a cooperative launch, with all blocks resident at the same time.
    Cooperative,
}

/// Some of the routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routes(u8);

impl Routes {
    /// All of them.
    pub const ALL: Self = Self(0x7f);

    /// Whether a route is among them.
    pub fn contains(self, route: Route) -> bool {
        self.0 >> route as u8 & 1 != 0
    }
}

impl FromIterator<Route> for Routes {
    fn from_iter<I: IntoIterator<Item = Route>>(routes: I) -> Self {
        Self(routes.into_iter().fold(0, |all, route| all | 1 << route as u8))
    }
}

/// The most counters that a mask's launches take: two plain ones, two nodes of a graph, a cluster
/// launch and a cooperative one.
pub(super) const LAUNCHES_PER_MASK_MAX: u32 = 6;

impl Route {
    /// Every route.
    pub const ALL: [Self; 7] = [
        Self::LowPriority,
        Self::Stream,
        Self::HighPriority,
        Self::LargeBlocks,
        Self::Graph,
        Self::Cluster,
        Self::Cooperative,
    ];

    /// Its name on the command line.
    pub fn key(self) -> &'static str {
        match self {
            Self::LowPriority => "low",
            Self::Stream => "stream",
            Self::HighPriority => "high",
            Self::LargeBlocks => "large",
            Self::Graph => "graph",
            Self::Cluster => "cluster",
            Self::Cooperative => "cooperative",
        }
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::LowPriority => "stream, lowest priority",
            Self::Stream => "stream",
            Self::HighPriority => "stream, highest priority",
            Self::LargeBlocks => "large blocks",
            Self::Graph => "graph",
            Self::Cluster => "cluster",
            Self::Cooperative => "cooperative",
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
