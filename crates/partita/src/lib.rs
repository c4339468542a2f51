//! The facade that Rust users depend on.
