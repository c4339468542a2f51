//! Discrete-event model of the GPU.
