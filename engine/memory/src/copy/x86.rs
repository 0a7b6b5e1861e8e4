//! Cache lines by the vector instructions of x86-64.

use std::arch::x86_64::{
    __m256i, __m512i, _MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm256_stream_si256,
    _mm512_loadu_si512, _mm512_stream_si512,
};

use super::batch::CopyBatch;
use super::streaming::{self, Lines};

struct Avx2;
struct Avx512;

impl Lines for Avx2 {
    #[inline(always)]
    unsafe fn stream(dst: *mut u8, src: *const u8, bytes: usize) {
        let mut at = 0;
        while at < bytes {
            // SAFETY: as promised by the caller: AVX is there, both ranges reach `bytes`, a
            // multiple of 64, and `dst` is aligned.
            unsafe {
                let low = _mm256_loadu_si256(src.add(at).cast::<__m256i>());
                let high = _mm256_loadu_si256(src.add(at + 32).cast::<__m256i>());
                _mm256_stream_si256(dst.add(at).cast::<__m256i>(), low);
                _mm256_stream_si256(dst.add(at + 32).cast::<__m256i>(), high);
            }
            at += 64;
        }
    }

    #[inline(always)]
    fn prefetch(src: *const u8) {
        prefetch_line(src);
    }
}

impl Lines for Avx512 {
    #[inline(always)]
    unsafe fn stream(dst: *mut u8, src: *const u8, bytes: usize) {
        let mut at = 0;
        while at < bytes {
            // SAFETY: as promised by the caller: AVX-512F is there, both ranges reach `bytes`, a
            // multiple of 64, and `dst` is aligned.
            unsafe {
                let line = _mm512_loadu_si512(src.add(at).cast::<__m512i>());
                _mm512_stream_si512(dst.add(at).cast::<__m512i>(), line);
            }
            at += 64;
        }
    }

    #[inline(always)]
    fn prefetch(src: *const u8) {
        prefetch_line(src);
    }
}

#[inline(always)]
pub(super) fn prefetch_line(src: *const u8) {
    // SAFETY: every x86-64 processor has SSE, and a prefetch of any address never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(src.cast::<i8>()) };
}

#[inline(always)]
pub(super) fn prefetch_line_to_write(dst: *const u8) {
    // SAFETY: a prefetch of any address never faults, and a processor that has none for writing takes it for one that does nothing.
    unsafe { _mm_prefetch::<_MM_HINT_ET0>(dst.cast::<i8>()) };
}

/// # Safety
/// The processor has AVX2; no span overlaps itself; `store_fence` follows.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn stream_avx2<const STEP: usize>(batch: &CopyBatch<'_>) {
    // SAFETY: as promised to this function.
    unsafe { streaming::copy::<Avx2, STEP>(batch) }
}

/// # Safety
/// The processor has AVX-512F; no span overlaps itself; `store_fence` follows.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn stream_avx512<const STEP: usize>(batch: &CopyBatch<'_>) {
    // SAFETY: as promised to this function.
    unsafe { streaming::copy::<Avx512, STEP>(batch) }
}
