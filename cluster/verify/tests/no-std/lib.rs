//! The verifier as a library without `std`, with its own panic handler and allocator. The compiler
//! refuses it if anything brings `std` in.
//!
//! `tests/no_std.rs` builds it for the host, and `wasm.sh` for wasm32, where `run.mjs` calls it.
#![no_std]

use core::{
    alloc::{GlobalAlloc, Layout},
    cell::UnsafeCell,
    slice,
    sync::atomic::{AtomicUsize, Ordering},
};

use coppice_verify::{note::VerifierKey, verify};

const ARENA_BYTES: usize = 4 << 20;

#[repr(align(16))]
struct Arena(UnsafeCell<[u8; ARENA_BYTES]>);

/// Hands out the arena from front to back, and never frees anything.
struct Bump {
    arena: Arena,
    used: AtomicUsize,
}

// SAFETY: `used` only grows, so the parts of the arena that are handed out do not overlap.
unsafe impl Sync for Bump {}

// SAFETY: as above. Each part is aligned as required, or null.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let space = layout.size() + layout.align() - 1;
        let start = self.used.fetch_add(space, Ordering::Relaxed);
        if start + space > ARENA_BYTES {
            return core::ptr::null_mut();
        }
        let base = self.arena.0.get().cast::<u8>();
        // SAFETY: the check above ensures that the part lies in the arena.
        let at = unsafe { base.add(start) };
        // SAFETY: the part has room for the alignment.
        unsafe { at.add(at.align_offset(layout.align())) }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Bump = Bump { arena: Arena(UnsafeCell::new([0; ARENA_BYTES])), used: AtomicUsize::new(0) };

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Allocates `len` bytes for input; null if the arena is full.
#[unsafe(no_mangle)]
pub extern "C" fn reserve(len: usize) -> *mut u8 {
    match Layout::from_size_align(len, 16) {
        // SAFETY: the allocator accepts any layout.
        Ok(layout) => unsafe { ALLOCATOR.alloc(layout) },
        Err(_) => core::ptr::null_mut(),
    }
}

/// Returns 0 if the proof file verifies under the key, 1 plus the number of the failed step if it
/// does not, and -1 if the key does not parse.
///
/// # Safety
/// `file` and `key` point to `file_len` and `key_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn verify_proof(file: *const u8, file_len: usize, key: *const u8, key_len: usize) -> i32 {
    // SAFETY: the caller ensures it.
    let (file, key) = unsafe { (slice::from_raw_parts(file, file_len), slice::from_raw_parts(key, key_len)) };
    let key = core::str::from_utf8(key).ok().and_then(|key| VerifierKey::parse(key).ok());
    match key.map(|key| verify(file, &key, None)) {
        None => -1,
        Some(Ok(_)) => 0,
        Some(Err(failure)) => 1 + failure.step as i32,
    }
}
