//! CUDA streams that programs name, and the order of copies behind them.

use pyo3::intern;
use pyo3::prelude::*;

use crate::error::{call, invalid};
use crate::log;
use crate::memory::{refused, type_name};

/// The default stream of a device, as protocols name it.
pub(crate) const LEGACY: u64 = 1;
/// As protocols say that there is no stream to be ordered behind.
const NO_STREAM: i64 = -1;

/// What copies are ordered behind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Behind {
    Nothing,
    /// The stream of this handle.
    Stream(u64),
}

impl Behind {
    /// The stream that an argument names: a number, or an object of torch, cupy or of `__cuda_stream__`.
    pub(crate) fn of(stream: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = stream.py();
        if let Ok(number) = stream.extract::<i64>() {
            return match number {
                NO_STREAM => Ok(Self::Nothing),
                1.. => Ok(Self::Stream(number.unsigned_abs())),
                _ => Err(invalid(&format!(
                    "{number} names no stream: 1 is the default stream, 2 that of this thread, -1 none, others are handles"
                ))),
            };
        }
        let handle = || {
            if let Some(protocol) = stream.getattr_opt(intern!(py, "__cuda_stream__"))? {
                let (_version, handle): (u64, u64) = protocol.call0()?.extract()?;
                return Ok(Some(handle));
            }
            for name in [intern!(py, "cuda_stream"), intern!(py, "ptr")] {
                if let Some(handle) = stream.getattr_opt(name)? {
                    return handle.extract().map(Some);
                }
            }
            Ok(None)
        };
        let handle: PyResult<Option<u64>> = handle();
        match handle {
            // Of an object it is the default stream.
            Ok(Some(handle)) => Ok(Self::Stream(handle.max(LEGACY))),
            Ok(None) => Err(invalid(&format!(
                "`{}` is no stream: give a stream of torch or cupy, an object with `__cuda_stream__`, or a handle",
                type_name(stream)
            ))),
            Err(error) => {
                Err(refused(py, error, |why| format!("the `{}` does not give its handle: {why}", type_name(stream))))
            }
        }
    }

    /// The stream that torch works with now, on the device of a tensor.
    pub(crate) fn torch(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = tensor.py();
        let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
        let torch = modules.call_method1(intern!(py, "get"), (intern!(py, "torch"),))?;
        let cuda = torch.getattr_opt(intern!(py, "cuda"))?;
        let current = cuda.map(|cuda| cuda.getattr_opt(intern!(py, "current_stream"))).transpose()?.flatten();
        // One that has none is what torch begins with.
        let Some(current) = current else { return Ok(Self::Stream(LEGACY)) };
        let stream = tensor.getattr(intern!(py, "device")).and_then(|device| current.call1((device,)));
        let words = |why: &str| format!("torch does not say which stream it works with: {why}");
        Self::of(&stream.map_err(|error| refused(py, error, words))?)
    }

    /// As DLPack numbers it.
    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Nothing => NO_STREAM,
            Self::Stream(handle) => handle.cast_signed(),
        }
    }

    /// Orders copies of the device that has memory at this address behind what the stream has now.
    pub(crate) fn order(self, py: Python<'_>, address: u64) -> PyResult<()> {
        let Self::Stream(handle) = self else { return Ok(()) };
        let ordered = py.detach(|| {
            let stream = std::ptr::without_provenance_mut(handle as usize);
            // SAFETY: whoever names a stream, or an object that does, keeps it until the call returns.
            call(|library| unsafe { (library.penstock_order_behind)(address, stream) })
        });
        log::hand_over(py);
        ordered?;
        Ok(())
    }
}
