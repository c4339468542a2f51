//! `partitad`: chains, memory and partitions of a machine's GPUs over REST.
