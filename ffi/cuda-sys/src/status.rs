//! What a function of the driver answers.

use std::fmt;

/// A number of the driver's, whether this release knows it or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "it says whether the call went well"]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($name:ident = $number:literal, $word:literal;)*) => {
        impl Status {
            $(pub const $name: Self = Self($number);)*
        }

        /// What the driver's own manual calls a number, where it is one of these.
        fn word(status: Status) -> Option<&'static str> {
            match status {
                $(Status::$name => Some($word),)*
                _ => None,
            }
        }
    };
}

statuses! {
    SUCCESS = 0, "success";
    INVALID_VALUE = 1, "invalid value";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "not initialised";
    DEINITIALIZED = 4, "the driver is shutting down";
    NO_DEVICE = 100, "no device";
    INVALID_DEVICE = 101, "invalid device";
    INVALID_CONTEXT = 201, "invalid context";
    ECC_UNCORRECTABLE = 214, "an error in memory that cannot be corrected";
    INVALID_HANDLE = 400, "invalid handle";
    ILLEGAL_STATE = 401, "illegal state";
    NOT_FOUND = 500, "not found";
    NOT_READY = 600, "not ready";
    ILLEGAL_ADDRESS = 700, "illegal address";
    CONTEXT_IS_DESTROYED = 709, "the context is destroyed";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "host memory is registered already";
    HOST_MEMORY_NOT_REGISTERED = 713, "host memory is not registered";
    LAUNCH_FAILED = 719, "launch failed";
    NOT_PERMITTED = 800, "not permitted";
    NOT_SUPPORTED = 801, "not supported";
    SYSTEM_NOT_READY = 802, "the system is not ready";
    SYSTEM_DRIVER_MISMATCH = 803, "the library and the kernel's driver are of different releases";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "the device does not run with this library and the kernel's driver";
    STREAM_CAPTURE_UNSUPPORTED = 900, "not permitted while a stream is captured";
    STREAM_CAPTURE_INVALIDATED = 901, "the capture is invalidated";
    STREAM_CAPTURE_IMPLICIT = 906, "it would draw the default stream into a capture";
    UNKNOWN = 999, "unknown";
}

impl Status {
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match word(*self) {
            Some(word) => write!(f, "CUDA error {}, {word}", self.0),
            None => write!(f, "CUDA error {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_drivers_header_and_unknown_ones_are_numbers_too() {
        use cudarc::driver::sys::CUresult;
        let known = [
            (Status::SUCCESS, CUresult::CUDA_SUCCESS),
            (Status::INVALID_VALUE, CUresult::CUDA_ERROR_INVALID_VALUE),
            (Status::OUT_OF_MEMORY, CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            (Status::NOT_INITIALIZED, CUresult::CUDA_ERROR_NOT_INITIALIZED),
            (Status::DEINITIALIZED, CUresult::CUDA_ERROR_DEINITIALIZED),
            (Status::NO_DEVICE, CUresult::CUDA_ERROR_NO_DEVICE),
            (Status::INVALID_DEVICE, CUresult::CUDA_ERROR_INVALID_DEVICE),
            (Status::INVALID_CONTEXT, CUresult::CUDA_ERROR_INVALID_CONTEXT),
            (Status::ECC_UNCORRECTABLE, CUresult::CUDA_ERROR_ECC_UNCORRECTABLE),
            (Status::INVALID_HANDLE, CUresult::CUDA_ERROR_INVALID_HANDLE),
            (Status::ILLEGAL_STATE, CUresult::CUDA_ERROR_ILLEGAL_STATE),
            (Status::NOT_FOUND, CUresult::CUDA_ERROR_NOT_FOUND),
            (Status::NOT_READY, CUresult::CUDA_ERROR_NOT_READY),
            (Status::ILLEGAL_ADDRESS, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
            (Status::CONTEXT_IS_DESTROYED, CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
            (Status::HOST_MEMORY_ALREADY_REGISTERED, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
            (Status::HOST_MEMORY_NOT_REGISTERED, CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
            (Status::LAUNCH_FAILED, CUresult::CUDA_ERROR_LAUNCH_FAILED),
            (Status::NOT_PERMITTED, CUresult::CUDA_ERROR_NOT_PERMITTED),
            (Status::NOT_SUPPORTED, CUresult::CUDA_ERROR_NOT_SUPPORTED),
            (Status::SYSTEM_NOT_READY, CUresult::CUDA_ERROR_SYSTEM_NOT_READY),
            (Status::SYSTEM_DRIVER_MISMATCH, CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
            (Status::COMPAT_NOT_SUPPORTED_ON_DEVICE, CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE),
            (Status::STREAM_CAPTURE_UNSUPPORTED, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            (Status::STREAM_CAPTURE_INVALIDATED, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            (Status::STREAM_CAPTURE_IMPLICIT, CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
            (Status::UNKNOWN, CUresult::CUDA_ERROR_UNKNOWN),
        ];
        for (ours, theirs) in known {
            assert_eq!(ours.0, theirs as u32, "{ours}");
            assert!(word(ours).is_some());
        }
        assert_eq!(Status(4711).to_string(), "CUDA error 4711");
        assert_eq!(Status::NOT_READY.to_string(), "CUDA error 600, not ready");
        assert!(Status::SUCCESS.is_success() && !Status(4711).is_success());
    }
}
