//! The verifier as a library without `std`: own panic handler, own allocator. It does not compile if anything brings `std` in.
//!
//! Built by `tests/no_std.rs` for the host, and by `wasm.sh` for wasm32, where `run.mjs` calls it.
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

/// Hands out the arena front to back, and never takes anything back.
struct Bump {
    arena: Arena,
    used: AtomicUsize,
}

// SAFETY: the arena is handed out in parts that don't overlap, as `used` only grows.
unsafe impl Sync for Bump {}

// SAFETY: as above; each part is aligned as asked, or null.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let space = layout.size() + layout.align() - 1;
        let start = self.used.fetch_add(space, Ordering::Relaxed);
        if start + space > ARENA_BYTES {
            return core::ptr::null_mut();
        }
        let base = self.arena.0.get().cast::<u8>();
        // SAFETY: checked above to lie in the arena.
        let at = unsafe { base.add(start) };
        // SAFETY: the space has room for the alignment.
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

/// Room for `len` bytes of input.
#[unsafe(no_mangle)]
pub extern "C" fn reserve(len: usize) -> *mut u8 {
    match Layout::from_size_align(len, 16) {
        // SAFETY: the allocator takes any layout.
        Ok(layout) => unsafe { ALLOCATOR.alloc(layout) },
        Err(_) => core::ptr::null_mut(),
    }
}

/// 0 if the proof file verifies under the key; else 1 and the number of the step that failed; -1 if the key is none.
///
/// # Safety
/// Both places hold as many bytes as is said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn verify_proof(file: *const u8, file_len: usize, key: *const u8, key_len: usize) -> i32 {
    // SAFETY: the caller's promise.
    let (file, key) = unsafe { (slice::from_raw_parts(file, file_len), slice::from_raw_parts(key, key_len)) };
    let key = core::str::from_utf8(key).ok().and_then(|key| VerifierKey::parse(key).ok());
    match key.map(|key| verify(file, &key, None)) {
        None => -1,
        Some(Ok(_)) => 0,
        Some(Err(failure)) => 1 + failure.step as i32,
    }
}
