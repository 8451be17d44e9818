//! The verifier of proof files and of evidence as a WebAssembly module without imports.
//!
//! `docs/proof-files.md` describes the calls. The host writes a request into memory that it got
//! from `alloc`, calls `verify` or `evidence`, reads the answer, and returns both by `free`:
//!
//! ```text
//! request = fields, each: u8 kind || u32 length, little-endian || bytes
//! answer  = JSON, in UTF-8; the call returns its length << 32 | its address
//! ```
//!
//! A second module, `trust.wasm`, has the calls `trust` and `grown` in place of these two. They
//! compare what answers show with what a client has seen before. Their requests have a fixed form,
//! and their answers are numbers.
//!
//! Nothing that a file holds makes the module trap. A trap means that memory ran out or that the
//! verifier has a fault: then nothing is known about the file, and the instance must not be used
//! again.
#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

#[cfg(feature = "verify")]
mod judge;
#[cfg(feature = "verify")]
mod request;
#[cfg(feature = "trust")]
mod trust;

#[cfg(feature = "verify")]
pub use judge::{judge, judge_evidence};
#[cfg(feature = "trust")]
pub use trust::{grown, trust};

#[cfg(target_arch = "wasm32")]
mod abi {
    use alloc::alloc::{alloc as allocate, dealloc};
    use core::{alloc::Layout, ptr, slice};

    #[cfg(feature = "verify")]
    use crate::{judge, judge_evidence};

    /// Longest request: two files of 64 MiB, and room for keys, policy and expectations.
    const REQUEST_BYTES_MAX: usize = (2 * 64 + 1) << 20;

    /// Each allocation takes the same time, whatever a file asks for. A block that grows is copied,
    /// since to extend it in its place takes more code.
    struct Small;

    impl rlsf::GlobalTlsfOptions for Small {
        const ENABLE_REALLOCATION: bool = false;
    }

    #[global_allocator]
    static ALLOCATOR: rlsf::GlobalTlsf<Small> = rlsf::GlobalTlsf::new();

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        core::arch::wasm32::unreachable()
    }

    /// Version of the calls and of the request.
    #[unsafe(no_mangle)]
    pub extern "C" fn abi() -> u32 {
        1
    }

    /// Allocates `len` bytes. Null if these are none, or more than any request has.
    #[unsafe(no_mangle)]
    pub extern "C" fn alloc(len: usize) -> *mut u8 {
        if len == 0 || len > REQUEST_BYTES_MAX {
            return ptr::null_mut();
        }
        match Layout::array::<u8>(len) {
            // SAFETY: the length is not 0.
            Ok(layout) => unsafe { allocate(layout) },
            Err(_) => ptr::null_mut(),
        }
    }

    /// Returns a request or an answer.
    ///
    /// # Safety
    /// `at` and `len` are those of an allocation that was not returned yet.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn free(at: *mut u8, len: usize) {
        if let Ok(layout) = Layout::array::<u8>(len)
            && !at.is_null()
            && len > 0
        {
            // SAFETY: the caller ensures that it was allocated with this layout.
            unsafe { dealloc(at, layout) }
        }
    }

    /// Judges the proof file of a request. Returns the answer's length << 32 | its address.
    ///
    /// # Safety
    /// `at` points to `len` readable bytes that do not change during the call.
    #[cfg(feature = "verify")]
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn verify(at: *const u8, len: usize) -> u64 {
        // SAFETY: the caller ensures it.
        unsafe { answer(at, len, judge) }
    }

    /// Judges the evidence file of a request. Returns the answer's length << 32 | its address.
    ///
    /// # Safety
    /// `at` points to `len` readable bytes that do not change during the call.
    #[cfg(feature = "verify")]
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn evidence(at: *const u8, len: usize) -> u64 {
        // SAFETY: the caller ensures it.
        unsafe { answer(at, len, judge_evidence) }
    }

    /// Says whether a proven answer is believed, as a number.
    ///
    /// # Safety
    /// `at` points to `len` readable bytes that do not change during the call.
    #[cfg(feature = "trust")]
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn trust(at: *const u8, len: usize) -> u32 {
        // SAFETY: the caller ensures it.
        crate::trust(unsafe { bytes(at, len) })
    }

    /// Says whether two proofs of growth show one log, as a number.
    ///
    /// # Safety
    /// `at` points to `len` readable bytes that do not change during the call.
    #[cfg(feature = "trust")]
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn grown(at: *const u8, len: usize) -> u32 {
        // SAFETY: the caller ensures it.
        crate::grown(unsafe { bytes(at, len) })
    }

    /// # Safety
    /// `at` points to `len` readable bytes that do not change while the slice is used.
    unsafe fn bytes<'a>(at: *const u8, len: usize) -> &'a [u8] {
        // SAFETY: the caller ensures it.
        if at.is_null() { &[] } else { unsafe { slice::from_raw_parts(at, len) } }
    }

    /// # Safety
    /// `at` points to `len` readable bytes that do not change during the call.
    #[cfg(feature = "verify")]
    unsafe fn answer(at: *const u8, len: usize, judge: fn(&[u8]) -> alloc::string::String) -> u64 {
        // SAFETY: the caller ensures it.
        let answer = judge(unsafe { bytes(at, len) }).into_bytes().into_boxed_slice();
        let len = answer.len() as u64;
        // The host returns it by `free`.
        let at = alloc::boxed::Box::into_raw(answer).cast::<u8>();
        len << 32 | at as u64
    }
}
