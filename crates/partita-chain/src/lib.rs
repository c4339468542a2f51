//! Chains of components: receive a frame in GPU memory, work on it, pass it on.
