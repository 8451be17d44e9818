//! Free memory that stays with the machine.
//!
//! A virtual machine may give free memory back to its host, in blocks of 2 MiB, seconds after it came free (virtio's free page
//! reporting), or may never have had it. Who uses such memory next waits for the host, ten times as long as a write to memory that is
//! there, so what a phase measures would be how much memory the phase before it had left. With one page of each block in use, no
//! block is free as a whole, and all else of it stays.

use std::fs;

use anyhow::{Context, Result};
use coppice_env::{Clock, SystemClock};
use memmap2::{Advice, MmapMut};

use crate::machine::{PAGE_BYTES, figure};

/// What a host takes back at once, and has as one piece.
const BLOCK_BYTES: usize = 2 << 20;
/// More mappings than a process may have otherwise.
const KEPT_BYTES_MAX: usize = 64 << 30;

/// A page of each block: for as long as it lives, the blocks stay.
#[derive(Debug)]
pub struct Kept {
    pages: Vec<MmapMut>,
    /// Microseconds that the first write to 4 KiB of it took, on average.
    pub first_touch_4k_us: f64,
}

impl Kept {
    /// Writes once to so much free memory, or to three quarters of what there is if that is less, and lets it go but for a page of each
    /// block. With more, the kernel would find its memory fragmented, and move these pages together.
    ///
    /// # Errors
    /// If it can't be had.
    pub fn new(bytes: usize) -> Result<Self> {
        let blocks = bytes.min(KEPT_BYTES_MAX).min(free_bytes()? / 4 * 3) / BLOCK_BYTES;
        let (mut pages, mut others, clock) = (Vec::new(), Vec::new(), SystemClock::new());
        for _ in 0..blocks {
            pages.push(touched(PAGE_BYTES)?);
            others.push(touched(BLOCK_BYTES - PAGE_BYTES)?);
        }
        let touches = (blocks * BLOCK_BYTES / PAGE_BYTES).max(1) as f64;
        let first_touch_4k_us = clock.now().as_secs_f64() * 1e6 / touches;
        Ok(Self { pages, first_touch_4k_us })
    }

    /// What of it is free, and here.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.len() * BLOCK_BYTES
    }
}

/// Memory of whole pages that has been written to.
fn touched(bytes: usize) -> Result<MmapMut> {
    let mut memory = MmapMut::map_anon(bytes).context("memory to keep")?;
    // A huge page of its own would stay in use as a whole. Some kernels know none.
    let _ = memory.advise(Advice::NoHugePage);
    memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
    Ok(memory)
}

/// Memory that could be had without any of it swapped out, and within the control group's limit half of that at most.
fn free_bytes() -> Result<usize> {
    let available = usize::try_from(figure("/proc/meminfo", "MemAvailable:")? << 10)?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse::<usize>().ok());
    Ok(limit.map_or(available, |limit| available.min(limit / 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_each_block_is_kept() {
        let kept = Kept::new(8 << 20).expect("memory");
        assert_eq!(kept.bytes(), 8 << 20);
        assert!(kept.pages.iter().all(|page| page.len() == PAGE_BYTES && page[0] == 1));
        assert!(kept.first_touch_4k_us > 0.0);
    }
}
