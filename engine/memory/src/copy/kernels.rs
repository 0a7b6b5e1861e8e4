//! Which kernels this processor can run, chosen once.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::batch::CopyBatch;
use super::{cached, store_fence};
use crate::fork::PerProcess;

/// One set of kernels.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    name: &'static str,
    /// Leaves non-temporal stores that a fence must order; `None` where there is none and the
    /// plain stores serve.
    ///
    /// Its safety: the processor has the instructions (`all_available` lists no other sets), and
    /// no span of the batch overlaps itself.
    streaming: Option<unsafe fn(&CopyBatch<'_>)>,
}

/// Plain stores only: every processor's last resort.
const PORTABLE: Kernels = Kernels { name: "portable", streaming: None };

#[cfg(target_arch = "x86_64")]
mod sets {
    use super::super::streaming::{LONG_STEP, SHORT_STEP};
    use super::super::x86::{stream_avx2, stream_avx512};
    use super::Kernels;

    pub(super) const AVX2: Kernels = Kernels { name: "avx2", streaming: Some(stream_avx2::<SHORT_STEP>) };
    pub(super) const AVX2_LONG: Kernels =
        Kernels { name: "avx2, long steps", streaming: Some(stream_avx2::<LONG_STEP>) };
    pub(super) const AVX512: Kernels = Kernels { name: "avx512", streaming: Some(stream_avx512::<SHORT_STEP>) };
    pub(super) const AVX512_LONG: Kernels =
        Kernels { name: "avx512, long steps", streaming: Some(stream_avx512::<LONG_STEP>) };
}

/// The best kernels of this processor.
#[inline]
pub fn kernels() -> &'static Kernels {
    static BEST: AtomicPtr<Kernels> = AtomicPtr::new(ptr::null_mut());
    #[cold]
    fn choose() -> &'static Kernels {
        let best = Kernels::all_available().last().unwrap_or(&PORTABLE);
        BEST.store(ptr::from_ref(best).cast_mut(), Ordering::Release); // SYNC best-kernels: pairs with the load below
        best
    }
    let best = BEST.load(Ordering::Acquire); // SYNC best-kernels: pairs with the store above
    // SAFETY: it is null, or stands for a set that stays.
    unsafe { best.as_ref() }.unwrap_or_else(choose)
}

impl Kernels {
    /// Every set this processor can run, the best last.
    pub fn all_available() -> &'static [Kernels] {
        // Not behind a lock: a fork could catch it in the hands of another thread, and asking a virtual processor takes a while.
        static ALL: PerProcess<Vec<Kernels>> = PerProcess::new();
        ALL.get(detect)
    }

    /// The set of this name, if this processor can run it.
    pub fn by_name(name: &str) -> Option<&'static Kernels> {
        Self::all_available().iter().find(|kernels| kernels.name == name)
    }

    /// What it is called: `portable`, `avx2`, `avx512`, the latter two also with `, long steps`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Copies past the cache and fences. No span of the batch may overlap itself.
    #[inline]
    pub(super) fn streaming(&self, batch: &CopyBatch<'_>) {
        let Some(stream) = self.streaming else {
            return cached::copy(batch);
        };
        // SAFETY: only sets that the processor can run are ever handed out, and the caller asked
        // the batch about overlap.
        unsafe { stream(batch) };
        store_fence();
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Vec<Kernels> {
    let mut all = vec![PORTABLE];
    let mut add = |short, long| all.extend(if likes_long_steps() { [short, long] } else { [long, short] });
    if std::arch::is_x86_feature_detected!("avx2") {
        add(sets::AVX2, sets::AVX2_LONG);
    }
    if std::arch::is_x86_feature_detected!("avx512f") {
        add(sets::AVX512, sets::AVX512_LONG);
    }
    all
}

/// Whether this is one of AMD's processors, or of their relatives.
#[cfg(target_arch = "x86_64")]
fn likes_long_steps() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    matches!(name.as_flattened(), b"AuthenticAMD" | b"HygonGenuine")
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Vec<Kernels> {
    vec![PORTABLE]
}
