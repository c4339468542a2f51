//! The daemon's arguments.

fn main() {}
