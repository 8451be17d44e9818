//! Candidate election, registry and discovery: the trait and its embedded durable store
