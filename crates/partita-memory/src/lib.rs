//! Device memory by lease, owned by a process of its own, so that a component's death loses nothing.
