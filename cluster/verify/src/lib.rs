//! Hashing, encodings and offline verification of everything a ledger signs
