//! `penstock.Plan`, and what it is made of.

use pyo3::prelude::*;

use crate::arrays::rows;
use crate::error::{call, invalid};
use crate::library::*;
use crate::region::{Blocks, Region, RemoteRegion};
use crate::values::Handle;

/// What moves between two regions: checked when it is made, and submitted as often as one likes.
#[pyclass(frozen, module = "penstock")]
pub(crate) struct Plan {
    handle: Handle,
    bytes: u64,
}

impl Plan {
    pub(crate) fn new(handle: Handle) -> PyResult<Self> {
        let mut bytes = 0;
        // SAFETY: the place of a number.
        call(|library| unsafe { (library.penstock_plan_bytes)(handle.number(), &raw mut bytes) })?;
        Ok(Self { handle, bytes })
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle.number()
    }
}

#[pymethods]
impl Plan {
    /// Bytes that a transfer of it moves.
    #[getter]
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn __repr__(&self) -> String {
        format!("<penstock.Plan of {} bytes>", self.bytes)
    }
}

/// The named arguments of a plan, as the library takes them.
#[derive(Default)]
pub(crate) struct Shape {
    layers: Vec<penstock_layer>,
    blocks: Vec<penstock_block_pair>,
    block_bytes: u64,
    strides: (u64, u64),
    strided: Vec<penstock_strided>,
    extents: Vec<penstock_extent>,
    keep: Vec<u64>,
}

impl Shape {
    pub(crate) fn of(
        layers: Option<&Bound<'_, PyAny>>,
        blocks: Option<&Bound<'_, PyAny>>,
        block_bytes: u64,
        strides: Option<(u64, u64)>,
        strided: Option<&Bound<'_, PyAny>>,
        extents: Option<&Bound<'_, PyAny>>,
        keep: Option<Vec<Py<Blocks>>>,
    ) -> PyResult<Self> {
        let mut shape = Self { block_bytes, strides: strides.unwrap_or_default(), ..Self::default() };
        if let Some(layers) = layers {
            let layer = |[local, remote]: [u64; 2]| penstock_layer { local, remote };
            shape.layers = rows(layers, "layers")?.into_iter().map(layer).collect();
        }
        if let Some(blocks) = blocks {
            let pair = |(row, [local, remote]): (usize, [u64; 2])| match (u32::try_from(local), u32::try_from(remote)) {
                (Ok(local), Ok(remote)) => Ok(penstock_block_pair { local, remote }),
                _ => {
                    Err(invalid(&format!("`blocks`: row {row} is ({local}, {remote}), and no pool has so many blocks")))
                }
            };
            shape.blocks = rows(blocks, "blocks")?.into_iter().enumerate().map(pair).collect::<PyResult<_>>()?;
        }
        if let Some(strided) = strided {
            let run = |[local, remote, bytes, local_stride, remote_stride, count]: [u64; 6]| penstock_strided {
                local,
                remote,
                bytes,
                local_stride,
                remote_stride,
                count,
            };
            shape.strided = rows(strided, "strided")?.into_iter().map(run).collect();
        }
        if let Some(extents) = extents {
            let extent = |[local, remote, bytes]: [u64; 3]| penstock_extent { local, remote, bytes };
            shape.extents = rows(extents, "extents")?.into_iter().map(extent).collect();
        }
        shape.keep = keep.unwrap_or_default().iter().map(|blocks| blocks.get().handle()).collect();
        Ok(shape)
    }

    pub(crate) fn plan(&self, py: Python<'_>, direction: u32, local: &Region, remote: &RemoteRegion) -> PyResult<Plan> {
        let (local, remote) = (local.handle(), remote.handle());
        let made = py.detach(|| {
            let options = penstock_plan_options {
                direction,
                layers: self.layers.as_ptr(),
                layer_count: self.layers.len(),
                blocks: self.blocks.as_ptr(),
                block_count: self.blocks.len(),
                block_bytes: self.block_bytes,
                local_stride: self.strides.0,
                remote_stride: self.strides.1,
                strided: self.strided.as_ptr(),
                strided_count: self.strided.len(),
                extents: self.extents.as_ptr(),
                extent_count: self.extents.len(),
                keep: self.keep.as_ptr(),
                keep_count: self.keep.len(),
                ..Default::default()
            };
            Handle::of(|library, place| {
                // SAFETY: options with their size, whose arrays have as many values as they say, and the place of a handle.
                unsafe { (library.penstock_plan_create)(local, remote, &raw const options, place) }
            })
        });
        Plan::new(made?)
    }
}
