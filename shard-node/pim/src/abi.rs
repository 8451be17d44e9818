//! The binary interface of the vendor's `libdpu`, and all `unsafe` code of the crate.
//!
//! [`DpuApi`] is a table of C functions. The dynamic linker fills it from `libdpu.so`, or the
//! linker from the emulator, whose functions have the same names and types. [`Dpus`] is the safe
//! side: an allocated set of DPUs with a program. Everything above sees only that.
//!
//! The types are restated from the published interface (`docs/pim.md`). Of the vendor's structures
//! only sizes and the two fields that iteration reads matter; the rest is passed through.

#![expect(unsafe_code, reason = "the functions of libdpu are C; this module is the only one that calls them")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    ops::Range,
    path::Path,
    ptr,
    sync::Arc,
};

use libloading::Library;

use crate::{Error, Result};

/// Name of the start of the free part of MRAM.
const MRAM: &CStr = c"__sys_used_mram_end";
const ARGS: &CStr = c"pim_args";
const CYCLES: &CStr = c"pim_cycles";

const TO_DPU: u32 = 0;
const FROM_DPU: u32 = 1;
const ASYNCHRONOUS: u32 = 0;
/// The vendor's number for a fault of a DPU.
const FAULT: c_int = 20;

/// A set of ranks or one DPU: a kind, and a union that only the library reads.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DpuSet {
    kind: u32,
    union: [u64; 2],
}

#[repr(C)]
struct RankIterator {
    set: *mut DpuSet,
    count: u32,
    next_index: u32,
    has_next: bool,
    next: DpuSet,
}

#[repr(C)]
struct DpuIterator {
    ranks: RankIterator,
    count: u32,
    next_index: u32,
    has_next: bool,
    next: DpuSet,
}

const _: () = assert!(size_of::<DpuSet>() == 24);
const _: () = assert!(size_of::<RankIterator>() == 48);
const _: () = assert!(size_of::<DpuIterator>() == 88);

/// Names a function of the table, its type, and how the table is filled.
macro_rules! calls {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of `libdpu` that the crate calls.
        #[derive(Clone, Copy)]
        struct Calls {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        mod emulated {
            use super::*;

            unsafe extern "C" {
                $(pub(super) fn $name($(_: $argument),*) $(-> $result)?;)*
            }
        }

        impl Calls {
            fn emulated() -> Self {
                Self { $($name: emulated::$name,)* }
            }

            fn of(library: &Library) -> std::result::Result<Self, libloading::Error> {
                $(
                    // SAFETY: the type is that of the published interface, restated above.
                    let $name = unsafe {
                        *library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(concat!(stringify!($name), "\0").as_bytes())?
                    };
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

calls! {
    dpu_alloc: fn(u32, *const c_char, *mut DpuSet) -> c_int;
    dpu_free: fn(DpuSet) -> c_int;
    dpu_load: fn(DpuSet, *const c_char, *mut *mut c_void) -> c_int;
    dpu_launch: fn(DpuSet, u32) -> c_int;
    dpu_sync: fn(DpuSet) -> c_int;
    dpu_status: fn(DpuSet, *mut bool, *mut bool) -> c_int;
    dpu_copy_to: fn(DpuSet, *const c_char, u32, *const c_void, usize) -> c_int;
    dpu_prepare_xfer: fn(DpuSet, *mut c_void) -> c_int;
    dpu_push_xfer: fn(DpuSet, u32, *const c_char, u32, usize, u32) -> c_int;
    dpu_set_rank_iterator_from: fn(*mut DpuSet) -> RankIterator;
    dpu_set_rank_iterator_next: fn(*mut RankIterator);
    dpu_set_dpu_iterator_from: fn(*mut DpuSet) -> DpuIterator;
    dpu_set_dpu_iterator_next: fn(*mut DpuIterator);
}

// What the emulator alone has.
unsafe extern "C" {
    fn emu_kill_after(set: DpuSet, transfers: u64) -> c_int;
    fn emu_fault(set: DpuSet) -> *const c_char;
    fn emu_counts(set: DpuSet, counts: *mut u64);
    #[cfg(test)]
    static emu_layout: [u32; 12];
}

/// The functions of `libdpu`, or of the emulator.
pub struct DpuApi {
    calls: Calls,
    /// Keeps the code of the functions in memory. `None` for the emulator.
    library: Option<Library>,
}

impl std::fmt::Debug for DpuApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DpuApi").field("emulated", &self.is_emulated()).finish_non_exhaustive()
    }
}

impl DpuApi {
    /// The emulator. Its DPUs are [named](Dpus::allocate) with the program `emulator:kernel`.
    #[must_use]
    pub fn emulator() -> Arc<Self> {
        Arc::new(Self { calls: Calls::emulated(), library: None })
    }

    /// The vendor's library at a path, or by its name in the linker's usual places.
    ///
    /// # Errors
    /// `NoLibrary` if it is missing or lacks a function.
    pub fn load(path: &Path) -> Result<Arc<Self>> {
        // SAFETY: the operator names the library; its initialisers are the vendor's.
        let opened = unsafe { Library::new(path) };
        let filled = opened.and_then(|library| Ok((Calls::of(&library)?, library)));
        match filled {
            Ok((calls, library)) => Ok(Arc::new(Self { calls, library: Some(library) })),
            Err(error) => {
                let (path, why) = (path.display().to_string(), error.to_string());
                // The linker repeats the name.
                let why = why.strip_prefix(&format!("{path}: ")).unwrap_or(&why).to_owned();
                Err(Error::NoLibrary { path, why })
            }
        }
    }

    /// Whether the DPUs are emulated, so that their times are modelled and not measured.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        self.library.is_none()
    }
}

/// The sizes that the C side was compiled with, in the order of `emu_layout`.
#[cfg(test)]
pub(crate) fn compiled_layout() -> [u32; 12] {
    // SAFETY: it is a constant of the linked emulator.
    unsafe { emu_layout }
}

/// Allocated DPUs that hold a program. They are freed when this is dropped.
#[derive(Debug)]
pub struct Dpus {
    api: Arc<DpuApi>,
    all: DpuSet,
    dpus: Vec<DpuSet>,
    /// Each rank with the numbers of its DPUs.
    ranks: Vec<(DpuSet, Range<usize>)>,
}

fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Error::Call { call, code }) }
}

fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Setting("a zero byte in a name"))
}

impl Dpus {
    /// Allocates DPUs by a profile of the library (`docs/pim.md`) and loads a program into them.
    ///
    /// # Errors
    /// `Setting` for a name with a zero byte, otherwise the error of the library.
    pub fn allocate(api: &Arc<DpuApi>, count: u32, profile: &str, program: &str) -> Result<Self> {
        let (profile, program) = (text(profile)?, text(program)?);
        let mut all = DpuSet { kind: 0, union: [0; 2] };
        // SAFETY: the strings end with zero, and `all` is written before the call returns.
        check("dpu_alloc", unsafe { (api.calls.dpu_alloc)(count, profile.as_ptr(), &raw mut all) })?;
        let mut allocated = Self { api: Arc::clone(api), all, dpus: Vec::new(), ranks: Vec::new() };
        allocated.list();
        // SAFETY: the set is allocated. The library accepts no place for the program's handle.
        let loaded = unsafe { (api.calls.dpu_load)(all, program.as_ptr(), ptr::null_mut()) };
        check("dpu_load", loaded)?;
        Ok(allocated)
    }

    /// Lists the DPUs of each rank.
    fn list(&mut self) {
        let calls = &self.api.calls;
        let mut all = self.all;
        // SAFETY: `all` and each `rank` outlive the iterators that point to them.
        unsafe {
            let mut ranks = (calls.dpu_set_rank_iterator_from)(&raw mut all);
            while ranks.has_next {
                let mut rank = ranks.next;
                let first = self.dpus.len();
                let mut dpus = (calls.dpu_set_dpu_iterator_from)(&raw mut rank);
                while dpus.has_next {
                    self.dpus.push(dpus.next);
                    (calls.dpu_set_dpu_iterator_next)(&raw mut dpus);
                }
                self.ranks.push((ranks.next, first..self.dpus.len()));
                (calls.dpu_set_rank_iterator_next)(&raw mut ranks);
            }
        }
    }

    /// Whether the DPUs are emulated.
    #[must_use]
    pub fn are_emulated(&self) -> bool {
        self.api.is_emulated()
    }

    /// Number of DPUs; they are numbered from 0.
    #[must_use]
    pub fn count(&self) -> usize {
        self.dpus.len()
    }

    /// The numbers of the DPUs of each rank.
    pub fn ranks(&self) -> impl Iterator<Item = Range<usize>> {
        self.ranks.iter().map(|(_, dpus)| dpus.clone())
    }

    /// Writes bytes to the MRAM of one DPU, `at` bytes behind the start of its free part.
    ///
    /// # Errors
    /// That of the library: place and length must be multiples of 8 and lie in the memory.
    pub fn write(&mut self, dpu: usize, at: u32, bytes: &[u8]) -> Result<()> {
        let (set, from) = (self.dpus[dpu], bytes.as_ptr().cast());
        // SAFETY: the library reads as many bytes as the slice has.
        let code = unsafe { (self.api.calls.dpu_copy_to)(set, MRAM.as_ptr(), at, from, bytes.len()) };
        check("dpu_copy_to", code)
    }

    /// Writes buffers of one length to the MRAM of many DPUs at once. DPUs without one are left as
    /// they are.
    ///
    /// # Errors
    /// That of the library.
    ///
    /// # Panics
    /// If lengths differ, or there is not one place for each DPU.
    pub fn push(&mut self, at: u32, buffers: &mut [Option<Vec<u8>>]) -> Result<()> {
        self.transfer(TO_DPU, MRAM, at, buffers)
    }

    /// Sets the arguments of the next launch: six numbers for each DPU.
    ///
    /// # Errors
    /// That of the library.
    pub fn set_args(&mut self, args: &[[u32; 6]]) -> Result<()> {
        let bytes = |args: &[u32; 6]| -> Option<Vec<u8>> {
            Some(args.iter().flat_map(|number| number.to_le_bytes()).collect())
        };
        self.transfer(TO_DPU, ARGS, 0, &mut args.iter().map(bytes).collect::<Vec<_>>())
    }

    /// Reads bytes of MRAM of the chosen DPUs at once.
    ///
    /// # Errors
    /// That of the library.
    pub fn pull(&mut self, at: u32, bytes: usize, chosen: &[bool]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut buffers: Vec<_> = chosen.iter().map(|chosen| chosen.then(|| vec![0; bytes])).collect();
        self.transfer(FROM_DPU, MRAM, at, &mut buffers)?;
        Ok(buffers)
    }

    /// The cycles of each DPU in the last launch: those of its slowest tasklet.
    ///
    /// # Errors
    /// That of the library.
    pub fn cycles(&mut self) -> Result<Vec<u64>> {
        let mut buffers = vec![Some(vec![0; 64]); self.count()];
        self.transfer(FROM_DPU, CYCLES, 0, &mut buffers)?;
        let number = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
        let most = |buffer: &Option<Vec<u8>>| {
            buffer.iter().flat_map(|bytes| bytes.as_chunks().0).map(number).max().unwrap_or_default()
        };
        Ok(buffers.iter().map(most).collect())
    }

    fn transfer(&mut self, direction: u32, symbol: &CStr, at: u32, buffers: &mut [Option<Vec<u8>>]) -> Result<()> {
        assert_eq!(buffers.len(), self.count(), "a place for each DPU");
        let Some(bytes) = buffers.iter().flatten().map(Vec::len).next() else { return Ok(()) };
        assert!(buffers.iter().flatten().all(|buffer| buffer.len() == bytes), "buffers of one length");
        let calls = &self.api.calls;
        let mut prepared = Ok(());
        for (dpu, buffer) in self.dpus.iter().zip(&mut *buffers) {
            let to = buffer.as_mut().map_or(ptr::null_mut(), |buffer| buffer.as_mut_ptr().cast());
            // SAFETY: the buffers are borrowed until the transfer below has used the pointers or
            // they were cleared.
            prepared = prepared.and(check("dpu_prepare_xfer", unsafe { (calls.dpu_prepare_xfer)(*dpu, to) }));
        }
        // SAFETY: each prepared buffer has `bytes` bytes; without an error the library forgets the
        // pointers.
        let pushed = prepared.and_then(|()| {
            check("dpu_push_xfer", unsafe { (calls.dpu_push_xfer)(self.all, direction, symbol.as_ptr(), at, bytes, 0) })
        });
        if pushed.is_err() {
            for dpu in &self.dpus {
                // SAFETY: a null pointer clears what was prepared.
                unsafe { (calls.dpu_prepare_xfer)(*dpu, ptr::null_mut()) };
            }
        }
        pushed
    }

    /// Runs the program on all DPUs to its end. Returns which DPUs failed.
    ///
    /// # Errors
    /// That of the library, other than a fault of a DPU.
    pub fn launch(&mut self) -> Result<Vec<bool>> {
        let calls = &self.api.calls;
        for (rank, _) in &self.ranks {
            // SAFETY: the set is allocated and holds a program.
            check("dpu_launch", unsafe { (calls.dpu_launch)(*rank, ASYNCHRONOUS) })?;
        }
        let mut failed = vec![false; self.dpus.len()];
        for (rank, dpus) in &self.ranks {
            // SAFETY: as above.
            match unsafe { (calls.dpu_sync)(*rank) } {
                FAULT => dpus.clone().for_each(|dpu| failed[dpu] = self.has_failed(dpu)),
                code => check("dpu_sync", code)?,
            }
        }
        Ok(failed)
    }

    fn has_failed(&self, dpu: usize) -> bool {
        let (mut done, mut fault) = (false, false);
        // SAFETY: both flags are written before the call returns.
        let code = unsafe { (self.api.calls.dpu_status)(self.dpus[dpu], &raw mut done, &raw mut fault) };
        code != 0 || fault || !done
    }

    /// Orders an emulated DPU to fail in its next launches, after this many transfers; 0: no more.
    ///
    /// # Panics
    /// If the DPUs are not emulated.
    pub fn kill_after(&mut self, dpu: usize, transfers: u64) {
        assert!(self.are_emulated(), "only the emulator fails to order");
        // SAFETY: the set is the emulator's own.
        unsafe { emu_kill_after(self.dpus[dpu], transfers) };
    }

    /// Why an emulated DPU failed in its last launch.
    ///
    /// # Panics
    /// If the DPUs are not emulated.
    #[must_use]
    pub fn fault(&self, dpu: usize) -> String {
        assert!(self.are_emulated(), "only the emulator names its faults");
        // SAFETY: the emulator returns a constant that ends with zero.
        unsafe { CStr::from_ptr(emu_fault(self.dpus[dpu])) }.to_string_lossy().into_owned()
    }

    /// Transfers, bytes transferred and modelled instructions of an emulated DPU's last launch.
    ///
    /// # Panics
    /// If the DPUs are not emulated.
    #[must_use]
    pub fn counts(&self, dpu: usize) -> [u64; 3] {
        assert!(self.are_emulated(), "only the emulator counts");
        let mut counts = [0; 3];
        // SAFETY: the emulator writes three numbers.
        unsafe { emu_counts(self.dpus[dpu], counts.as_mut_ptr()) };
        counts
    }
}

impl Drop for Dpus {
    fn drop(&mut self) {
        // SAFETY: the set was allocated, and nothing uses it afterwards.
        unsafe { (self.api.calls.dpu_free)(self.all) };
    }
}
