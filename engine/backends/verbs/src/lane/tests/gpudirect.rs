//! Memory of a device, which cards reach by themselves. The device is the test's own: a file, of which it sees what was there when it was flushed.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use penstock_memory::{DeviceId, DeviceMemory, DeviceWindow, Memory};
use penstock_transport::{AccessPath, CardAccess, DeviceLane, Devices, DmaBuf, ImportError, Pair};

use super::*;

const DEVICE: DeviceId = DeviceId([9; 16]);
/// Its memory does not begin where a page does, neither in its own addresses nor in the file.
const ADDRESS: u64 = 0x7d00_0000_0000 + INTO;
const INTO: u64 = 512;
const PAGE: u64 = 4096;
const BYTES: usize = 40_000;

struct Gpu {
    file: File,
    has_dma_buf: bool,
    needs_flush: bool,
    is_in_order: AtomicBool,
    shares: AtomicUsize,
    flushes: AtomicUsize,
    /// What it saw when it was flushed last, and what the engine's counter was then.
    seen: Mutex<(Vec<u8>, u64)>,
    segments: Mutex<Option<Arc<EngineSegments>>>,
}

impl Gpu {
    fn new(needs_flush: bool) -> Arc<Self> {
        // SAFETY: a C string; what is answered is nobody else's.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"gpu".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(PAGE + INTO + BYTES as u64).unwrap();
        Arc::new(Self {
            file,
            has_dma_buf: true,
            needs_flush,
            is_in_order: AtomicBool::new(true),
            shares: AtomicUsize::new(0),
            flushes: AtomicUsize::new(0),
            seen: Mutex::default(),
            segments: Mutex::default(),
        })
    }

    /// An engine over one card that has this device.
    fn engine(self: &Arc<Self>, network: &ModelNetwork) -> Engine {
        let mut engine = Engine::new(network, 1, 1);
        engine.transport = engine.transport.with_devices(Some(Arc::clone(self) as Arc<dyn Devices>));
        *self.segments.lock().unwrap() = Some(Arc::clone(&engine.segments));
        engine
    }

    fn region(engine: &Engine, address: u64, rights: Rights) -> Arc<Region> {
        // SAFETY: the test has it for as long as it runs.
        let memory = unsafe { DeviceMemory::from_raw(DEVICE, address, BYTES as u64) }.unwrap();
        engine.registry.register_device(memory, "gpu", rights).unwrap()
    }

    fn put(&self, bytes: &[u8]) {
        self.file.write_all_at(bytes, PAGE + INTO).unwrap();
    }

    fn get(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.file.read_exact_at(&mut bytes, PAGE + INTO).unwrap();
        bytes
    }

    fn counter(&self) -> u64 {
        let segments = self.segments.lock().unwrap();
        segments.as_ref().unwrap().mailbox.view().counter(7).unwrap().value()
    }
}

impl Devices for Gpu {
    fn pair(&self, _: &Memory, _: &Memory) -> Result<Pair, ImportError> {
        unreachable!("nothing is copied")
    }

    fn lane(&self, _: usize, _: u32) -> Box<dyn DeviceLane> {
        unreachable!("nothing is copied")
    }

    fn driver(&self, _: usize) -> io::Result<Box<dyn Driver>> {
        unreachable!("nothing is copied")
    }

    fn share_with_cards(&self, memory: &DeviceWindow) -> Result<CardAccess, String> {
        assert_eq!(memory.device(), DEVICE);
        self.shares.fetch_add(1, Ordering::Relaxed);
        let dma_buf = match self.has_dma_buf {
            true => {
                // Opened anew it has a position of its own.
                let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.file));
                let mut file = File::options().read(true).write(true).open(path).unwrap();
                file.seek(SeekFrom::Start(PAGE)).unwrap();
                Ok(DmaBuf { descriptor: file.into(), offset: INTO })
            }
            false => Err("the device has none".to_owned()),
        };
        Ok(CardAccess { dma_buf, needs_flush: self.needs_flush })
    }

    fn flush_card_writes(&self, device: DeviceId) -> Result<(), String> {
        assert_eq!(device, DEVICE);
        self.flushes.fetch_add(1, Ordering::Relaxed);
        *self.seen.lock().unwrap() = (self.get(), self.counter());
        Ok(())
    }

    fn is_in_order(&self, _: DeviceId) -> bool {
        self.is_in_order.load(Ordering::Relaxed)
    }
}

/// Host memory at one engine, a device's at the other, and what the first knows of that.
fn sides(gpu: &Arc<Gpu>) -> (ModelNetwork, [Side; 2], Arc<Region>) {
    let network = ModelNetwork::new(crate::model::Options::default());
    let mut sides = join(Engine::new(&network, 1, 1), gpu.engine(&network));
    settle(&mut sides);
    let region = Gpu::region(&sides[1].engine, ADDRESS, Rights::READ_WRITE);
    (network, sides, region)
}

fn path_of(region: &Region, side: &Side, other: &Side) -> AccessPath {
    let exported = side.registrar.export(&Arc::clone(&side.engine.registry.get(region.id()).unwrap()));
    other.registrar.access_path(&remote(region, &exported.access_blob))
}

#[test]
fn peers_write_and_read_a_devices_memory_by_its_dma_buf() {
    let gpu = Gpu::new(false);
    let (_network, mut sides, region) = sides(&gpu);
    assert_eq!(sides[1].registrar.reaches_device(&region), Ok(()));
    let path = path_of(&region, &sides[1], &sides[0]);
    assert_eq!(path.name, "gpudirect (dma-buf)");
    assert!(path.reason.contains("model0/1 to model1/1"), "{}", path.reason);
    let near = sides[0].engine.region(pattern(3, BYTES), Rights::NONE);
    let there = sides[1].show(&region, &sides[0]);
    // Neighbours, odd places, few bytes and many.
    let spans = [span(0, 39_000, 1000), span(5000, 1, 7), span(10_000, 100, 30_000)];
    gpu.put(&pattern(4, BYTES));
    assert_eq!(sides[0].post(WRITE, &near, &there, &spans, (1, 1)), Ok(Posted::Accepted(3)));
    assert_eq!(sides[0].tell(1, 2, 5, b"written"), Ok(NotifyPosted::Accepted));
    until(&mut sides, "it was told", |sides| sides[0].result(2).is_some());
    let (mut expected, source) = (pattern(4, BYTES), pattern(3, BYTES));
    for Span { local, remote, len } in spans {
        let (local, remote, len) = (local as usize, remote as usize, len as usize);
        expected[remote..remote + len].copy_from_slice(&source[local..local + len]);
    }
    assert!(gpu.get() == expected && sides[1].got().notes == [(5, b"written".to_vec())]);
    let back = sides[0].engine.region(vec![0; BYTES], Rights::NONE);
    let all = [span(0, 0, BYTES as u64)];
    assert_eq!(sides[0].post(READ, &back, &there, &all, (3, 2)), Ok(Posted::Accepted(1)));
    until(&mut sides, "it was read", |sides| sides[0].result(3).is_some());
    assert!(bytes_of(&back) == expected);
    assert_eq!(gpu.flushes.load(Ordering::Relaxed), 0, "its device orders what cards write");
}

#[test]
fn a_devices_memory_is_written_from_and_read_to_without_a_processor_that_reads_it() {
    let gpu = Gpu::new(true);
    let (_network, mut sides, region) = sides(&gpu);
    let lane = |sides: &mut [Side; 2]| sides[1].workers[0].lane().reaches_device(key_of(&region));
    assert!(lane(&mut sides));
    let far = sides[0].engine.region(vec![0; BYTES], Rights::READ_WRITE);
    let there = sides[0].show(&far, &sides[1]);
    let caps = sides[1].engine.transport.caps();
    let pair = sides[1].registrar.pair(&caps, &region, &there).unwrap();
    assert!(pair.is_ordered && !pair.is_synchronous);
    gpu.put(&pattern(6, BYTES));
    // So few bytes go with their request where a processor reads them: here the address is none.
    let spans = [span(11, 3, 40), span(200, 1000, 9000)];
    assert_eq!(sides[1].post(WRITE, &region, &there, &spans, (1, 1)), Ok(Posted::Accepted(2)));
    until(&mut sides, "it was written", |sides| sides[1].result(1).is_some());
    settle(&mut sides);
    let mut expected = vec![0; BYTES];
    expected[3..43].copy_from_slice(&pattern(6, BYTES)[11..51]);
    expected[1000..10_000].copy_from_slice(&pattern(6, BYTES)[200..9200]);
    assert!(bytes_of(&far) == expected);
    let before = gpu.flushes.load(Ordering::Relaxed);
    assert_eq!(sides[1].post(READ, &region, &there, &[span(0, 0, 20_000)], (2, 2)), Ok(Posted::Accepted(1)));
    until(&mut sides, "it was read", |sides| sides[1].result(2).is_some());
    assert!(gpu.flushes.load(Ordering::Relaxed) > before);
    assert!(gpu.seen.lock().unwrap().0[..20_000] == expected[..20_000], "flushed when the end was reported");
}

#[test]
fn a_device_is_flushed_before_anybody_is_told_of_bytes() {
    let gpu = Gpu::new(true);
    let (_network, mut sides, region) = sides(&gpu);
    let near = sides[0].engine.region(pattern(8, BYTES), Rights::NONE);
    let there = sides[1].show(&region, &sides[0]);
    let generation = sides[1].engine.segments.mailbox.view().counter(7).unwrap().generation();
    let counter = CounterRef { index: 7, generation };
    for round in 1..=3_u64 {
        gpu.put(&vec![0; BYTES]);
        let all = [span(0, 0, BYTES as u64)];
        assert_eq!(sides[0].post(WRITE, &near, &there, &all, (round, round)), Ok(Posted::Accepted(1)));
        assert_eq!(sides[0].count(round, 100 + round, counter), Ok(NotifyPosted::Accepted));
        until(&mut sides, "it was counted", |_| gpu.counter() == round);
        let (seen, counted) = &*gpu.seen.lock().unwrap();
        assert!(*seen == pattern(8, BYTES), "round {round}: told of what the device does not see");
        assert_eq!(*counted, round - 1, "told, and flushed afterwards");
    }
    // Of memory that is gone nobody is told any more.
    sides[1].engine.transport.release_registrations(region.id(), region.generation());
    settle(&mut sides);
    let before = gpu.flushes.load(Ordering::Relaxed);
    assert_eq!(sides[0].count(9, 9, counter), Ok(NotifyPosted::Accepted));
    until(&mut sides, "it was counted", |_| gpu.counter() == 4);
    assert_eq!(gpu.flushes.load(Ordering::Relaxed), before);
}

#[test]
fn a_card_that_takes_no_dma_bufs_says_so_and_reaches_nothing() {
    let gpu = Gpu::new(false);
    let (_network, mut sides, region) = sides(&gpu);
    sides[1].engine.adapters[0].refuse_dma_bufs();
    let why = sides[1].registrar.reaches_device(&region).unwrap_err();
    assert_eq!(
        why,
        "cards do not reach this memory of a device: by dma-buf: memory of a device on model1/1: its driver takes no dma-buf; its bytes go through \
         host memory; by peer memory: memory of a device on model1/1: no module knows its address; its bytes go through host memory"
    );
    assert!(!sides[1].workers[0].lane().reaches_device(key_of(&region)));
    let far = sides[0].engine.region(vec![0; BYTES], Rights::READ_WRITE);
    let there = sides[0].show(&far, &sides[1]);
    let caps = sides[1].engine.transport.caps();
    assert!(matches!(sides[1].registrar.pair(&caps, &region, &there), Err(ImportError::NoPath(words)) if words == why));
    let posted = sides[1].post(WRITE, &region, &there, &[span(0, 0, 64)], (1, 1));
    assert_eq!(posted, Err(PostError::Refused(Cause::NoPath)));
    assert_eq!(path_of(&region, &sides[1], &sides[0]).name, AccessPath::NONE);
    // The host's memory is none of this.
    assert_eq!(
        sides[0].registrar.reaches_device(&Gpu::region(&sides[0].engine, ADDRESS, Rights::NONE)).map_err(|_| ()),
        Err(())
    );
}

#[test]
fn where_there_is_no_dma_buf_a_module_that_knows_the_address_will_do() {
    let mut gpu = Gpu::new(false);
    Arc::get_mut(&mut gpu).unwrap().has_dma_buf = false;
    let (_network, mut sides, _) = sides(&gpu);
    sides[1].engine.adapters[0].reach_peer_memory();
    // This process's own memory stands for the device's: an address that the model can use.
    let memory = HostMemory::from_vec(pattern(2, BYTES)).unwrap();
    let region = Gpu::region(&sides[1].engine, memory.window().base_address(), Rights::READ_WRITE);
    assert_eq!(path_of(&region, &sides[1], &sides[0]).name, "gpudirect (peer memory)");
    let near = sides[0].engine.region(vec![0; BYTES], Rights::NONE);
    let there = sides[1].show(&region, &sides[0]);
    assert_eq!(sides[0].post(READ, &near, &there, &[span(0, 0, BYTES as u64)], (1, 1)), Ok(Posted::Accepted(1)));
    until(&mut sides, "it was read", |sides| sides[0].result(1).is_some());
    assert!(bytes_of(&near) == pattern(2, BYTES));
}

#[test]
fn memory_that_is_remapped_is_registered_anew() {
    let gpu = Gpu::new(false);
    let (_network, sides, region) = sides(&gpu);
    let keys = |side: &Side| side.registrar.export(&region).access_blob;
    let first = keys(&sides[1]);
    assert_eq!((keys(&sides[1]), gpu.shares.load(Ordering::Relaxed)), (first.clone(), 1));
    sides[1].engine.registry.renew(region.id(), region.generation()).unwrap();
    assert_ne!(keys(&sides[1]), first);
    assert_eq!(gpu.shares.load(Ordering::Relaxed), 2);
    assert_eq!(sides[1].engine.transport.registrations(), 2);
    sides[1].engine.transport.release_registrations(region.id(), region.generation());
    assert_eq!(sides[1].engine.transport.registrations(), 0);
}

#[test]
fn a_post_waits_for_the_streams_that_copies_were_ordered_behind() {
    let gpu = Gpu::new(false);
    let (_network, mut sides, region) = sides(&gpu);
    let far = sides[0].engine.region(vec![0; BYTES], Rights::READ_WRITE);
    let there = sides[0].show(&far, &sides[1]);
    gpu.is_in_order.store(false, Ordering::Relaxed);
    let post = |sides: &mut [Side; 2]| sides[1].post(WRITE, &region, &there, &[span(0, 0, 64)], (1, 1));
    assert_eq!(post(&mut sides), Err(PostError::Full));
    // The lane is polled by and by, although nothing comes: the transfer is posted again then.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !sides[1].turn() {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(post(&mut sides), Err(PostError::Full));
    gpu.is_in_order.store(true, Ordering::Relaxed);
    assert_eq!(post(&mut sides), Ok(Posted::Accepted(1)));
    until(&mut sides, "it was written", |sides| sides[1].result(1).is_some());
}
