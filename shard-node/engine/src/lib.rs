//! The shard engine: a forest of Merkle B+-trees on location-addressed versioned pages
