//! This engine's own memory as it is offered to peers.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::{Cause, Env, Rights};
use penstock_flows::Layout;
use penstock_flows::action::RegionRef;
use penstock_flows::geometry::{ShardStripe, clash_of};
use penstock_memory::{BlockAllocator, Blocks, Deregistered, DeviceId, Region, TakeError, Window};

use crate::counter::Counter;
use crate::engine_inner::EngineInner;
use crate::error::RegionError;
use crate::quiesce::{LocalQuiesce, Subject};

/// A registered region of this engine.
///
/// Dropping the handle does not deregister: peers may use the region until
/// [`LocalRegion::deregister`] is called or the engine ends.
pub struct LocalRegion<E: Env> {
    pub(crate) engine: Arc<EngineInner<E>>,
    pub(crate) region: Arc<Region>,
}

impl<E: Env> Clone for LocalRegion<E> {
    fn clone(&self) -> Self {
        Self { engine: Arc::clone(&self.engine), region: Arc::clone(&self.region) }
    }
}

impl<E: Env> std::fmt::Debug for LocalRegion<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalRegion").field("label", &self.label()).field("bytes", &self.bytes()).finish()
    }
}

impl<E: Env> LocalRegion<E> {
    /// The label peers find it by.
    pub fn label(&self) -> &str {
        self.region.label()
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.region.bytes()
    }

    /// Why calls of its engine are refused, if so.
    pub fn ended(&self) -> Option<Cause> {
        self.engine.shared.check_usable().err()
    }

    /// What peers may do to it.
    pub fn rights(&self) -> Rights {
        self.region.rights()
    }

    /// Where its first byte is, as plans by address name it.
    pub fn base(&self) -> u64 {
        self.region.base_address()
    }

    /// Its memory, if a processor can touch it. Peers may write it at any time, so it is never given out as a slice.
    pub fn host(&self) -> Option<&Window> {
        self.region.host()
    }

    /// The device whose memory it is, if it is a device's.
    pub fn device(&self) -> Option<DeviceId> {
        self.region.memory().device()
    }

    /// An arrival counter that peers find by this label.
    pub fn counter(&self, label: &str) -> Result<Counter<E>, RegionError> {
        self.engine.shared.check_usable().map_err(RegionError::Call)?;
        let full = penstock_memory::MemoryError::NotHere {
            what: "another arrival counter",
            why: "the engine has as many as it may have",
            mend: "drop counters that are not needed any more",
        };
        if label.len() > penstock_session::frame::LABEL_BYTES_MAX {
            return Err(RegionError::LabelTooLong { bytes: label.len() });
        }
        if !self.region.is_live() {
            return Err(RegionError::Stale { label: self.region.label().to_owned() });
        }
        let counter = Counter::open(&self.engine, label, self.region.id().0).ok_or(full)?;
        self.engine.shared.control.advertise();
        Ok(counter)
    }

    /// Takes parts of the region back from everyone: transfers that touch them, in either
    /// direction, end with a typed cause, and plans made before are stale. **Plans built afterwards
    /// may use them again**: tell peers not to build them, or deregister.
    ///
    /// Answers by its deadline whether anything can still land. With living, running peers the
    /// answer is never quarantine, given time for one copy of 1 MiB, unless the kernel has pages of this very region for a peer that takes
    /// them slowly (`tcp`); blocks of a pool that are quarantined stay
    /// allocated until the proof.
    pub fn revoke(&self, extents: &[(u64, u64)], timeout: Duration) -> Result<LocalQuiesce, RegionError> {
        self.engine.shared.check_usable().map_err(RegionError::Call)?;
        for &(offset, len) in extents {
            let inside = offset.checked_add(len).is_some_and(|end| end <= self.bytes());
            if !inside || len == 0 {
                let label = self.label().to_owned();
                return Err(RegionError::OutOfBounds { label, offset, len, bytes: self.bytes() });
            }
        }
        if !self.region.is_live() {
            return Err(RegionError::Stale { label: self.label().to_owned() });
        }
        loop {
            let generation = self.region.generation();
            self.engine.withdraw(self.region.id(), generation.0, extents);
            // Renewed meanwhile: there may be plans of the next generation already.
            if self.region.generation() == generation {
                break;
            }
        }
        Ok(self.settle(extents, timeout))
    }

    /// Takes the whole region back for good. Once the answer is `Quiesced`, memory that the caller
    /// lent may be freed, and its windows may not be used any more. A region registered several
    /// times stands until its last registration ends; until then the answer is `StillRegistered`.
    pub fn deregister(&self, timeout: Duration) -> Result<LocalQuiesce, RegionError> {
        if self.engine.shared.is_inherited() {
            return Err(RegionError::Call(Cause::Forked));
        }
        let shared = &self.engine.shared;
        shared.check_usable().map_err(RegionError::Call)?;
        let generation = loop {
            let generation = self.region.generation();
            match shared.deregister(&self.region, generation) {
                Ok(Deregistered::StillUsed(times)) => return Ok(LocalQuiesce::StillRegistered(times)),
                Ok(Deregistered::Last(_)) => break generation,
                // Renewed between the two lines above.
                Err(_) if self.region.generation() != generation => {}
                // Whatever has its number now is another one.
                Err(_) => return Err(RegionError::Stale { label: self.label().to_owned() }),
            }
        };
        shared.segments.owner_state.withdraw_region(self.region.id().0, generation.0);
        shared.control.advertise();
        let hold = self.settle(&[(0, self.bytes())], timeout);
        shared.forget(self.region.id(), generation);
        Ok(hold)
    }

    fn settle(&self, extents: &[(u64, u64)], within: Duration) -> LocalQuiesce {
        let keep = || self.withhold(extents);
        self.engine.settle(&Subject { label: self.label(), region: Some(&self.region), extents, keep: &keep }, within)
    }
}

impl<E: Env> LocalRegion<E> {
    /// Keeps all blocks of a pool that have bytes in these extents out of use: by the pool's own numbers, and by those of layouts of it that
    /// have others.
    fn withhold(&self, extents: &[(u64, u64)]) -> Vec<Blocks> {
        let Some(pool) = self.region.blocks() else { return Vec::new() };
        let ranges = extents.iter().flat_map(|&(offset, len)| pool.withhold_range(offset, len));
        let mut kept: Vec<Blocks> = ranges.collect();
        for layout in self.layouts_otherwise(pool) {
            let has_some = |index| extents.iter().any(|&(offset, len)| layout.has_bytes_in(index, offset, len));
            kept.extend(pool.withhold(|index| index < layout.blocks() && has_some(index)));
        }
        kept
    }

    /// Layouts of it that give bytes the numbers of other blocks than the pool does.
    fn layouts_otherwise(&self, pool: &BlockAllocator) -> Vec<Arc<Layout>> {
        let at = RegionRef { region: self.region.id(), generation: self.region.generation() };
        let (len, blocks) = (pool.block_bytes(), pool.total());
        let own = [ShardStripe { base: 0, stride: len, len, blocks }];
        let is_other = |layout: &&Arc<Layout>| clash_of(&own, &layout.stripes()).is_some();
        self.engine.shared.look_at_manager(|manager| manager.layouts_in(at).filter(is_other).cloned().collect())
    }
}

/// Memory that Penstock allocated, registered once and handed out in blocks.
pub struct Pool<E: Env> {
    pub(crate) region: LocalRegion<E>,
    pub(crate) pool: Arc<penstock_memory::Pool>,
}

impl<E: Env> Pool<E> {
    pub(crate) fn new(region: LocalRegion<E>, pool: Arc<penstock_memory::Pool>) -> Self {
        Self { region, pool }
    }

    /// Takes so many blocks, or none. They are given back when the last handle is dropped.
    pub fn take(&self, count: usize) -> Result<Blocks, TakeError> {
        self.pool.take(count)
    }

    /// The same, as soon as so many are free, at most after this time: blocks of transfers come back when the engine has seen that nothing
    /// touches them any more, a moment after they were let go. More than there are is refused at once.
    pub fn take_within(&self, count: usize, timeout: Duration) -> Result<Blocks, TakeError> {
        take_within(&self.region.engine, self.pool.blocks(), count, timeout)
    }

    /// Its memory. Peers may write it at any time, so it is never given out as a slice.
    pub fn window(&self) -> &Window {
        self.pool.window()
    }

    /// The memory itself: its blocks, pages and node.
    pub fn memory(&self) -> &Arc<penstock_memory::Pool> {
        &self.pool
    }
}

fn take_within<E: Env>(
    engine: &EngineInner<E>,
    blocks: &Arc<BlockAllocator>,
    count: usize,
    timeout: Duration,
) -> Result<Blocks, TakeError> {
    let until = engine.shared.env.now() + timeout;
    let mut taken = blocks.take(count);
    if taken.is_err() && count <= blocks.total() as usize {
        engine.wait_until(until, || {
            taken = blocks.take(count);
            taken.is_ok() || engine.shared.is_closing()
        });
    }
    taken
}

/// Memory of a device that Penstock allocated, registered once and handed out in blocks.
pub struct DevicePool<E: Env> {
    pub(crate) region: LocalRegion<E>,
    pub(crate) pool: Arc<penstock_memory::DeviceBlocks>,
}

impl<E: Env> DevicePool<E> {
    /// As [`Pool::take`].
    pub fn take(&self, count: usize) -> Result<Blocks, TakeError> {
        self.pool.take(count)
    }

    /// As [`Pool::take_within`].
    pub fn take_within(&self, count: usize, timeout: Duration) -> Result<Blocks, TakeError> {
        take_within(&self.region.engine, self.pool.blocks(), count, timeout)
    }

    /// The memory itself: its device, its addresses and its blocks.
    pub fn memory(&self) -> &Arc<penstock_memory::DeviceBlocks> {
        &self.pool
    }
}

impl<E: Env> Clone for DevicePool<E> {
    fn clone(&self) -> Self {
        Self { region: self.region.clone(), pool: Arc::clone(&self.pool) }
    }
}

impl<E: Env> Deref for DevicePool<E> {
    type Target = LocalRegion<E>;

    fn deref(&self) -> &LocalRegion<E> {
        &self.region
    }
}

impl<E: Env> Clone for Pool<E> {
    fn clone(&self) -> Self {
        Self { region: self.region.clone(), pool: Arc::clone(&self.pool) }
    }
}

impl<E: Env> Deref for Pool<E> {
    type Target = LocalRegion<E>;

    fn deref(&self) -> &LocalRegion<E> {
        &self.region
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_core::{Cause, Config};
    use penstock_memory::PoolSpec;
    use penstock_session::control::Rows;

    use crate::engine::Engine;
    use crate::flows::LayoutSpec;

    #[test]
    fn a_close_ends_a_wait_for_blocks() {
        let folder = std::env::temp_dir().join(format!("penstock-waits-for-blocks-{}", std::process::id()));
        let engine = Engine::start(Config::default().named("waits").directory(&folder)).unwrap();
        let pool = engine.pool(PoolSpec::host(4096).block(4096)).unwrap();
        let all = pool.take(1).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| pool.take_within(1, Duration::from_secs(60)).is_err());
            std::thread::sleep(Duration::from_millis(20));
            let begun = std::time::Instant::now();
            assert!(engine.close(Duration::from_secs(5)).is_empty());
            assert!(waits.join().unwrap() && begun.elapsed() < Duration::from_secs(10));
        });
        assert_eq!(pool.ended(), Some(Cause::EngineClosed));
        drop(all);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_taken_back_is_withheld_by_the_numbers_of_its_layouts_too() {
        let folder = std::env::temp_dir().join(format!("penstock-withheld-{}", std::process::id()));
        let engine = Engine::start(Config::default().named("withheld").directory(&folder)).unwrap();
        let pool = engine.pool(PoolSpec::host(8 * 2048).block(2048).label("kv")).unwrap();
        // One layer behind the other: block 5 lies in bytes that the pool has as blocks 2 and 6.
        let rows = Rows { first: 0, count: 1, of: 1, bytes: 64 };
        let spec = LayoutSpec::new("kv", 16, 8).token_major(0, 0, rows).token_major(1, 8 * 1024, rows);
        let layout = engine.layout(&pool, spec).unwrap();
        let extents = [0, 1].map(|buffer| layout.extent(buffer, 5).unwrap());
        let held = pool.take(6).unwrap();
        let withheld = pool.withhold(&extents);
        drop(held);
        let free = pool.take(5).unwrap();
        assert!(free.indices().iter().all(|index| ![2, 5, 6].contains(index)), "{free:?}");
        assert!(pool.take(1).is_err(), "what may still be written to is nobody's");
        drop((withheld, free, layout, engine));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
