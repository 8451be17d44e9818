//! Keeps the host from taking the machine's free memory.
//!
//! A virtual machine may give free memory back to its host within seconds, in blocks of 2 MiB
//! (virtio's free page reporting), and may never have received other memory. The first write to
//! such memory waits for the host, and takes ten times as long as a write to memory that the
//! machine has. So the times of a phase would depend on the memory that the phase before it had
//! left. With one page of each block in use, no block is free as a whole, and the host takes none.

use std::fs;

use anyhow::{Context, Result};
use coppice_env::{Clock, SystemClock};
use memmap2::{Advice, MmapMut};

use crate::machine::{PAGE_BYTES, figure};

/// The block that a host takes back at once, and holds as one piece.
const BLOCK_BYTES: usize = 2 << 20;
/// The greatest amount of memory to keep; more would need more mappings than a process may have.
const KEPT_BYTES_MAX: usize = 64 << 30;

/// One page of each block. While this value lives, the blocks stay.
#[derive(Debug)]
pub struct Kept {
    pages: Vec<MmapMut>,
    /// Average microseconds of the first write to 4 KiB of the memory.
    pub first_touch_4k_us: f64,
}

impl Kept {
    /// Writes once to this much free memory, or to three quarters of the free memory if that is
    /// less. Then it releases everything except one page of each block. If more pages stayed, the
    /// kernel would find its memory fragmented, and move them together.
    ///
    /// # Errors
    /// If the memory can't be allocated.
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

    /// Bytes of it that are free and stay with the machine.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.len() * BLOCK_BYTES
    }
}

/// Memory of whole pages that has been written to.
fn touched(bytes: usize) -> Result<MmapMut> {
    let mut memory = MmapMut::map_anon(bytes).context("memory to keep")?;
    // A huge page would stay in use as a whole. Some kernels have none.
    let _ = memory.advise(Advice::NoHugePage);
    memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
    Ok(memory)
}

/// Memory that can be used without swapping; within a control group, at most half of its limit.
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
