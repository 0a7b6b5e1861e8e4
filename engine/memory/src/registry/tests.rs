//! Ids, generations, counting and the cost of a registration.

use std::time::Duration;

use super::*;
use crate::PoolSpec;

const BYTES: usize = 64;

/// A view of `len` bytes at `base` that nobody will ever touch.
fn view(base: usize, len: usize) -> HostMemory {
    // SAFETY: these tests register and compare addresses; no byte is read or written.
    unsafe { HostMemory::from_raw(base as *mut u8, len) }.unwrap()
}

fn register(registry: &Registry, base: usize, label: &str) -> Arc<Region> {
    registry.register_host(view(base, BYTES), label, Rights::READ_WRITE).unwrap()
}

#[test]
fn the_same_memory_again_is_the_same_region_counted() {
    let registry = Registry::new();
    let first = register(&registry, 0x1000, "kv");
    let revision = registry.revision();
    let again = register(&registry, 0x1000, "kv");
    assert!(Arc::ptr_eq(&first, &again));
    assert_eq!((registry.len(), registry.revision()), (1, revision));

    let (id, generation) = (first.id(), first.generation());
    assert!(matches!(registry.deregister(id, generation), Ok(Deregistered::StillUsed(1))));
    assert!(first.is_live());
    let Ok(Deregistered::Last(last)) = registry.deregister(id, generation) else { panic!() };
    assert!(Arc::ptr_eq(&first, &last) && !first.is_live());
    assert!(registry.is_empty() && registry.revision() > revision);
    let gone = RegionError::StaleGeneration { id, presented: generation, current: Generation(generation.0 + 1) };
    assert_eq!(registry.deregister(id, generation).unwrap_err(), gone);
}

#[test]
fn another_length_label_or_right_is_another_region_and_overlaps_are_fine() {
    let registry = Registry::new();
    let regions = [
        register(&registry, 0x1000, "kv"),
        register(&registry, 0x1000, "aux"),
        register(&registry, 0x1010, "kv"),
        registry.register_host(view(0x1000, BYTES), "kv", Rights::READ).unwrap(),
        registry.register_host(view(0x1000, BYTES + 1), "kv", Rights::READ_WRITE).unwrap(),
    ];
    assert_eq!(registry.len(), 5);
    let ids: Vec<u32> = registry.iter().map(|region| region.id().0).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4]);
    assert_eq!(registry.find("kv").unwrap().id(), regions[0].id());
    assert_eq!(registry.find("aux").unwrap().id(), regions[1].id());
    assert!(registry.find("none").is_none());
}

#[test]
fn a_reused_id_has_a_new_generation() {
    let registry = Registry::new();
    let old = register(&registry, 0x1000, "old");
    registry.deregister(old.id(), old.generation()).unwrap();
    assert!(registry.get(old.id()).is_none());
    let new = register(&registry, 0x2000, "new");
    assert_eq!(new.id(), old.id());
    assert_ne!(new.generation(), old.generation());
    assert!(Arc::ptr_eq(&registry.resolve(new.id(), new.generation()).unwrap(), &new));
    assert!(Arc::ptr_eq(&registry.get(new.id()).unwrap(), &new));
    let stale = RegionError::StaleGeneration { id: old.id(), presented: old.generation(), current: new.generation() };
    assert_eq!(registry.resolve(old.id(), old.generation()).unwrap_err(), stale);
    let unknown = RegionId(7);
    assert_eq!(registry.resolve(unknown, Generation(0)).unwrap_err(), RegionError::Unknown(unknown));
    // The old region is still whole for work in flight.
    assert_eq!((old.label(), old.bytes()), ("old", BYTES as u64));
}

#[test]
fn a_pool_is_a_region_under_its_own_label_and_rights() {
    let spec = PoolSpec::host(4096).label("kv").rights(Rights::READ);
    let pool = Arc::new(Pool::create(spec).unwrap());
    let registry = Registry::new();
    let region = registry.register_pool(Arc::clone(&pool)).unwrap();
    let again = registry.register_pool(Arc::clone(&pool)).unwrap();
    assert!(Arc::ptr_eq(&region, &again));
    assert_eq!((region.label(), region.rights()), ("kv", Rights::READ));
    assert!(Arc::ptr_eq(region.pool().unwrap(), &pool));
    assert_eq!(region.base_address(), pool.window().base_address());
    assert!(register(&registry, 0x1000, "host").pool().is_none());
}

/// What this thread has had of a core.
fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Registers `count` views of 200 KB, as an engine with one tensor a layer and more would.
fn time_registrations(count: usize) -> Duration {
    let registry = Registry::new();
    let start = own_time();
    for i in 0..count {
        registry.register_host(view(0x10_0000 + i * 200_000, 200_000), "layer", Rights::READ_WRITE).unwrap();
    }
    let took = own_time() - start;
    assert_eq!(registry.len(), count);
    took
}

#[test]
fn ten_thousand_registrations_are_quick() {
    // The least of several rounds, and of this thread's own time: a busy machine must not fail this. The goal is 20 ms in release; without
    // optimisation a slow machine takes as much, and who looks at every region for each new one takes seconds.
    let least = (0..5).map(|_| time_registrations(10_000)).min().unwrap();
    assert!(least < Duration::from_millis(100), "{least:?}");
}

#[test]
fn what_changed_since_a_revision_is_listed_once_and_all_where_too_much_did() {
    let registry = Registry::new();
    let list = |since: u64| {
        let Changes { revision, is_all, list } = registry.changes_since(since);
        assert_eq!(revision, registry.revision());
        (is_all, list.into_iter().map(|(id, region)| (id.0, region.is_some())).collect::<Vec<_>>())
    };
    assert_eq!(list(0), (false, vec![]));
    let regions: Vec<_> = (1..4).map(|page| register(&registry, page << 12, "kv")).collect();
    let seen = registry.revision();
    assert_eq!(list(0), (false, vec![(0, true), (1, true), (2, true)]));
    let _ = registry.deregister(regions[0].id(), regions[0].generation()).unwrap();
    registry.renew(regions[1].id(), regions[1].generation()).unwrap();
    assert_eq!(list(seen), (false, vec![(0, false), (1, true)]));
    let _ = register(&registry, 9 << 12, "kv"); // In the first one's place.
    assert_eq!(list(seen), (false, vec![(1, true), (0, true)]));
    assert_eq!(list(registry.revision()), (false, vec![]));
    for page in 0..CHANGES_KEPT {
        let region = register(&registry, (page + 100) << 12, "kv");
        let _ = registry.deregister(region.id(), region.generation()).unwrap();
    }
    assert_eq!(list(seen), (true, vec![(2, true), (1, true), (0, true)]), "by their last change, without what is gone");
}

#[test]
fn a_region_is_found_by_address_as_long_as_it_stands() {
    let registry = Registry::new();
    let find = |address, bytes| registry.find_at(address, bytes, true).map(|region| region.id().0);
    assert_eq!((find(0x1000, 1), registry.nearest(0x1000).map(|region| region.id().0)), (None, None));
    let old = registry.register_host(view(0x1000, 0x3000), "all", Rights::READ).unwrap();
    let new = register(&registry, 0x2000, "view");
    assert_eq!((find(0x1000, 1), find(0x2000, 8), find(0x2000, 65)), (Some(0), Some(1), Some(0)));
    assert_eq!((find(0x3fff, 4096), find(0x4000, 1)), (Some(0), None));
    let _ = registry.deregister(new.id(), new.generation()).unwrap();
    assert_eq!(find(0x2000, 8), Some(0));
    let _ = registry.deregister(old.id(), old.generation()).unwrap();
    assert_eq!(find(0x2000, 8), None);
    let weak = Arc::downgrade(&old);
    drop((old, new));
    assert!(weak.upgrade().is_none(), "the index keeps no memory");
}

#[test]
fn memory_of_the_engine_itself_is_found_by_no_address() {
    let registry = Registry::new();
    let staging = Pool::create(PoolSpec::host(1 << 16).label("staging")).unwrap();
    let staging = registry.register_staging(Arc::new(staging)).unwrap();
    assert!(registry.find_at(staging.base_address(), 8, false).is_none());
    assert!(registry.nearest(staging.base_address() - 8).is_none(), "nor named as close");
    assert!(registry.get(staging.id()).is_some(), "it stands");
}
