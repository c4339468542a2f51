//! `libpartita_simcuda.so`: the simulated driver of `partita-simcuda` as the shared library that
//! programs open under the names `libcuda.so.1` and `libnvidia-ml.so.1`.
//!
//! A package of its own, because Cargo gives a shared library's package one file name for every way
//! that it is compiled, and tests compile it another way than programs.

extern crate simcuda as _;
