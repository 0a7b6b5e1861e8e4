//! Memory of CUDA devices that Python objects have, and its registration. Nothing of it is touched here, and no stream is waited for.

use std::fmt::Display;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays::number;
use crate::buffer::has_buffer;
use crate::dlpack::{count, is_one_block};
use crate::engine::Engine;
use crate::error::invalid;
use crate::memory::{Keeper, Memory, MemoryKind, elsewhere, is_torch_tensor, not_contiguous, refused, type_name};
use crate::region::Region;
use crate::stream::{Behind, LEGACY};

/// Registers what `Engine.register_device` was given, behind its stream.
pub(crate) fn register(
    engine: &Engine,
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    label: Option<String>,
    rights: u32,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Region> {
    engine.handle()?;
    let named = stream.map(Behind::of).transpose()?;
    // Before the region is there: peers may read it as soon as it is.
    if let Ok(pair) = object.cast::<PyTuple>() {
        let [address, bytes] = &*pair.iter().collect::<Vec<_>>() else {
            return Err(invalid(&format!("a tuple of {} things is not (address, bytes)", pair.len())));
        };
        let range = (number(address)?, number(bytes)?);
        if range.1 != 0 {
            named.unwrap_or(Behind::Nothing).order(py, range.0)?;
        }
        return engine.register_at(py, MemoryKind::Cuda, range, label, rights, None);
    }
    let (memory, behind) = Memory::of_device(object, named)?;
    behind.order(py, memory.address as u64)?;
    engine.register_memory(py, MemoryKind::Cuda, memory, label, rights)
}

impl Memory {
    /// The memory of a torch tensor, of an object with `__cuda_array_interface__`, or of one with DLPack, on a CUDA device, and the stream behind whose
    /// work it is: that which was named, else the object's own.
    fn of_device(object: &Bound<'_, PyAny>, named: Option<Behind>) -> PyResult<(Self, Behind)> {
        let py = object.py();
        let (memory, behind) = if is_torch_tensor(object) {
            let memory = Self::of_torch_tensor(object, MemoryKind::Cuda)?;
            (memory, named.map_or_else(|| Behind::torch(object), Ok)?)
        } else if let Some(interface) = interface_of(object)? {
            let (memory, own) = of_interface(object, &interface)?;
            (memory, named.unwrap_or(own))
        } else if object.hasattr(intern!(py, "__dlpack__"))? {
            // It puts its work before this stream, which is the protocol's own where none is named.
            let behind = named.unwrap_or(Behind::Stream(LEGACY));
            (Self::of_dlpack(object, MemoryKind::Cuda, Some(behind.number()))?, behind)
        } else if has_buffer(object) {
            return Err(elsewhere(&format!("the `{}` is host memory", type_name(object)), Some(MemoryKind::Host)));
        } else {
            return Err(invalid(&format!(
                "`{}` has no memory of a CUDA device; give a torch tensor on one, an object with `__cuda_array_interface__` (cupy, numba) or \
                 `__dlpack__`, or a tuple (address, bytes)",
                type_name(object)
            )));
        };
        Ok((memory.not_empty(object)?, behind))
    }
}

/// What an object says of its array, if it has one.
fn interface_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    let interface = object.getattr_opt(intern!(py, "__cuda_array_interface__"));
    interface.map_err(|error| {
        refused(py, error, |why| format!("the `{}` does not give its memory: {why}", type_name(object)))
    })
}

/// The memory of an array in words of `__cuda_array_interface__`, version 3 and those before, and its stream.
fn of_interface(object: &Bound<'_, PyAny>, interface: &Bound<'_, PyAny>) -> PyResult<(Memory, Behind)> {
    let py = object.py();
    let wrong =
        |why: &dyn Display| invalid(&format!("`__cuda_array_interface__` of the `{}` {why}", type_name(object)));
    let senseless = |error: PyErr| {
        refused(py, error, |why| {
            format!("`__cuda_array_interface__` of the `{}` makes no sense: {why}", type_name(object))
        })
    };
    let interface = interface.cast::<PyDict>().map_err(|_| wrong(&"is no dictionary"))?;
    let given = |name: &str| Ok::<_, PyErr>(interface.get_item(name)?.filter(|value| !value.is_none()));
    let needed = |name: &str| given(name)?.ok_or_else(|| wrong(&format_args!("has no `{name}`")));
    if given("mask")?.is_some() {
        return Err(wrong(&"has a mask: masked arrays are not one block of bytes"));
    }
    let (address, is_readonly): (usize, bool) = needed("data")?.extract().map_err(senseless)?;
    let shape: Vec<i64> = needed("shape")?.extract().map_err(senseless)?;
    let strides: Option<Vec<i64>> =
        given("strides")?.map(|strides| strides.extract()).transpose().map_err(senseless)?;
    let kind: String = needed("typestr")?.extract().map_err(senseless)?;
    let item_bytes = item_bytes(&kind).ok_or_else(|| wrong(&format_args!("has elements of type `{kind}`")))?;
    let count = count(&shape).ok_or_else(|| wrong(&"has a shape that makes no sense"))?;
    if let Some(strides) = strides
        && count != 0
    {
        if strides.len() != shape.len() {
            return Err(wrong(&"has strides that do not fit its shape"));
        }
        if !is_one_block(&shape, &strides, item_bytes as i64) {
            return Err(not_contiguous(object, "a contiguous one is a copy"));
        }
    }
    let bytes = count.checked_mul(item_bytes).ok_or_else(|| wrong(&"has a shape that makes no sense"))?;
    let behind = match given("stream")?.map(|stream| stream.extract::<u64>()).transpose().map_err(senseless)? {
        None => Behind::Nothing,
        Some(0) => return Err(wrong(&"has stream 0, which the protocol forbids: 1 is the default stream")),
        Some(handle) => Behind::Stream(handle),
    };
    Ok((Memory::new(address, bytes, is_readonly, Keeper::Object { _object: object.clone().unbind() }), behind))
}

/// Bytes of an element, by its type as in `<f4`: of those types only that are so many bytes.
fn item_bytes(kind: &str) -> Option<usize> {
    let (&[_, b'b' | b'i' | b'u' | b'f' | b'c' | b'm' | b'M' | b'S' | b'V'], digits) =
        kind.as_bytes().split_at_checked(2)?
    else {
        return None;
    };
    std::str::from_utf8(digits).ok()?.parse::<u32>().ok().map(|bytes| bytes as usize)
}
