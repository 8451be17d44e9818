//! A small cache of recently read values, shared behind `&self`.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// Keeps the `max` values that were last put in or found.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    recent: Mutex<VecDeque<(K, Arc<V>)>>,
    max: usize,
}

impl<K: Copy + PartialEq, V> Cache<K, V> {
    pub(crate) fn new(max: usize) -> Self {
        assert!(max > 0, "a cache has room for a value");
        Self { recent: Mutex::new(VecDeque::with_capacity(max)), max }
    }

    /// The value of a key. If it is not cached, it is made.
    pub(crate) fn get_or<E>(&self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<Arc<V>, E> {
        if let Some(value) = self.find(key) {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.truncate(self.max - 1);
        recent.push_front((key, Arc::clone(&value)));
        assert!(recent.len() <= self.max, "the oldest values leave");
        Ok(value)
    }

    fn find(&self, key: K) -> Option<Arc<V>> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let at = recent.iter().position(|(other, _)| *other == key)?;
        let found = recent.remove(at)?;
        let value = Arc::clone(&found.1);
        recent.push_front(found);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_that_was_used_longest_ago_leaves() {
        let cache = Cache::new(2);
        let get = |key: u8, made: &mut Vec<u8>| {
            let value = cache.get_or(key, || {
                made.push(key);
                Ok::<u8, ()>(key)
            });
            assert_eq!(value.map(|value| *value), Ok(key));
        };
        let mut made = Vec::new();
        for key in [1, 2, 1, 3, 1, 2] {
            get(key, &mut made);
        }
        assert_eq!(made, [1, 2, 3, 2], "3 took the room of 2");
    }

    #[test]
    fn a_value_that_can_not_be_made_is_not_kept() {
        let cache: Cache<u8, u8> = Cache::new(1);
        assert_eq!(cache.get_or(1, || Err("no")), Err("no"));
        assert_eq!(cache.get_or(1, || Ok::<u8, &str>(7)).map(|value| *value), Ok(7));
    }
}
