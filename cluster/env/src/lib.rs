//! The seams to the outside: clock, randomness, storage, network; real and simulated
