//! Rules of copies in batches.

use std::mem::zeroed;
use std::ptr::null_mut;

use penstock_cuda_sys::types::*;
use penstock_cuda_sys::{Driver, Lacking, Status};

use super::{Current, MIB, bytes_at, fill};

/// What a batch is given.
#[derive(Clone)]
struct Batch {
    destinations: Vec<CUdeviceptr>,
    sources: Vec<CUdeviceptr>,
    sizes: Vec<usize>,
    attributes: Vec<CUmemcpyAttributes>,
    starts: Vec<usize>,
}

impl Batch {
    fn new(order: CUmemcpySrcAccessOrder) -> Self {
        // SAFETY: all zeros are such attributes.
        let mut attributes: CUmemcpyAttributes = unsafe { zeroed() };
        attributes.srcAccessOrder = order;
        let (destinations, sources, sizes) = (vec![], vec![], vec![]);
        Self { destinations, sources, sizes, attributes: vec![attributes], starts: vec![0] }
    }

    fn add(&mut self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        self.destinations.push(to);
        self.sources.push(from);
        self.sizes.push(bytes);
    }

    /// What is answered, and which entry failed.
    fn queue(&mut self, driver: &Driver, stream: CUstream) -> Result<(Status, usize), Lacking> {
        let mut failed = 99;
        // SAFETY: vectors of these lengths; what is wrong is refused, and the rest is there until it has passed.
        let status = unsafe {
            driver.cuMemcpyBatchAsync(
                self.destinations.as_mut_ptr(),
                self.sources.as_mut_ptr(),
                self.sizes.as_mut_ptr(),
                self.sizes.len(),
                self.attributes.as_mut_ptr(),
                self.starts.as_mut_ptr(),
                self.starts.len(),
                &raw mut failed,
                stream,
            )
        }?;
        Ok((status, failed))
    }
}

pub(crate) fn batches() {
    const BLOCK: usize = 20 << 10;
    const COUNT: usize = 300;
    let current = Current::begin();
    let bytes = COUNT * BLOCK;
    let (host, back, device) = (current.pinned(bytes), current.pinned(bytes), current.memory(bytes));
    let stream = current.stream();
    for (round, order) in [
        CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
    ]
    .into_iter()
    .enumerate()
    {
        fill(host, bytes, round as u64);
        // Scattered one way, as they were the other way.
        let (mut down, mut up) = (Batch::new(order), Batch::new(order));
        for at in 0..COUNT {
            let (here, there) = ((at * BLOCK) as u64, ((at * 7 % COUNT) * BLOCK) as u64);
            down.add(device + there, host as u64 + here, BLOCK);
            up.add(back as u64 + here, device + there, BLOCK);
        }
        // The second half has attributes of its own.
        down.attributes.push(down.attributes[0]);
        down.starts.push(COUNT / 2);
        assert_eq!(down.queue(current.driver, stream).unwrap().0, Status::SUCCESS);
        assert_eq!(up.queue(current.driver, stream).unwrap().0, Status::SUCCESS);
        current.wait(stream);
        assert!(bytes_at(back, bytes) == bytes_at(host, bytes), "batches of one stream come one after the other");
    }
    let mut small = Batch::new(CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    for at in 0..256 {
        small.add(device + at * 64, host as u64 + at * 64, 64);
    }
    for _ in 0..64 {
        assert_eq!(small.queue(current.driver, stream).unwrap().0, Status::SUCCESS);
    }
    current.wait(stream);
}

pub(crate) fn refusals() {
    const NO_ENTRY: usize = usize::MAX;
    let current = Current::begin();
    let driver = current.driver;
    let (host, device, stream) = (current.pinned(MIB), current.memory(MIB), current.stream());
    let mut batch = Batch::new(CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    let refused = |batch: &Batch, stream| batch.clone().queue(driver, stream).unwrap();
    assert_eq!(refused(&batch, stream).0, Status::INVALID_VALUE, "none");
    batch.add(device, host as u64, 4096);
    batch.add(device + 8192, host as u64, 0);
    assert_eq!(refused(&batch, stream), (Status::INVALID_VALUE, 1), "nothing in the second");
    batch.sizes[1] = 4096;
    let mut wrong = batch.clone();
    (wrong.attributes, wrong.starts) = (vec![], vec![]);
    assert_eq!(refused(&wrong, stream), (Status::INVALID_VALUE, NO_ENTRY), "no attributes");
    let mut wrong = batch.clone();
    wrong.attributes[0].srcAccessOrder = CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
    assert_eq!(refused(&wrong, stream).0, Status::INVALID_VALUE, "no order");
    let mut wrong = batch.clone();
    wrong.destinations[1] = 0;
    assert_eq!(refused(&wrong, stream).0, Status::INVALID_VALUE, "null");
    assert_eq!(refused(&batch, null_mut()).0, Status::INVALID_VALUE, "the default stream");
    std::thread::scope(|scope| {
        let stream = stream as usize;
        let (batch, refused) = (&batch, &refused);
        let other = scope.spawn(move || refused(batch, stream as CUstream).0);
        assert_eq!(other.join().unwrap(), Status::INVALID_VALUE, "without a context");
    });
    // None of it is sticky; host to host, and two to one place.
    batch.add(host as u64 + 65536, host as u64, 4096);
    batch.add(device, host as u64, 4096);
    assert_eq!(refused(&batch, stream).0, Status::SUCCESS);
    current.wait(stream);
}

/// Asked for as another release has it, or not at all.
pub(crate) fn lacking() {
    let current = Current::begin();
    let mut batch = Batch::new(CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    let lacking = batch.queue(current.driver, current.stream()).unwrap_err();
    assert_eq!((lacking.function, lacking.since.number), ("cuMemcpyBatchAsync", 12_080));
    assert_eq!(current.driver.lacks(), [lacking]);
}

/// Copies of a batch go in any order: of two to one place either may be the last.
pub(crate) fn no_order() {
    let current = Current::begin();
    let (host, device, stream) = (current.pinned(3 * 4096), current.memory(MIB), current.stream());
    let back = host.wrapping_add(2 * 4096);
    fill(host, 4096, 1);
    fill(host.wrapping_add(4096), 4096, 2);
    let mut has_won = [false; 2];
    super::until(|| {
        let mut batch = Batch::new(CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
        batch.add(device, host as u64, 4096);
        batch.add(device, host as u64 + 4096, 4096);
        assert_eq!(batch.queue(current.driver, stream).unwrap().0, Status::SUCCESS);
        // SAFETY: all is there until it has passed.
        let copied = unsafe { current.driver.cuMemcpyDtoHAsync(back.cast(), device, 4096, stream) };
        assert_eq!(copied, Status::SUCCESS);
        current.wait(stream);
        let last = (0..2).find(|at| bytes_at(host.wrapping_add(at * 4096), 4096) == bytes_at(back, 4096));
        has_won[last.expect("one of the two, whole")] = true;
        has_won == [true; 2]
    });
}
