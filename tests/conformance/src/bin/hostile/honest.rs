//! An honest peer at load.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use penstock::{Engine, HostMemory, NoteId, Plan, PoolSpec, Rights, Span, Submit};
use penstock_conformance::hostile::{DEADLINE, WORK_BYTES, config, connect, region_for};
use penstock_conformance::pattern;

pub(crate) fn work(name: &str, transport: &str, victim: &str, folder: &Path) {
    let engine = Engine::start(config(folder, name, transport)).expect("an honest engine starts");
    // What the victim writes to, itself or by this engine's workers.
    let own = HostMemory::from_vec(vec![0; WORK_BYTES as usize]).expect("memory");
    let _own = engine.register(own, name, Rights::READ_WRITE).expect("it is registered");
    let near = engine.pool(PoolSpec::host(2 * WORK_BYTES).label("near").rights(Rights::NONE)).expect("memory");
    let peer = connect(&engine, transport, victim);
    let far = peer.wait_region(&region_for(name), DEADLINE).expect("the victim has a pool for each");
    let there = Span { local: 0, remote: 0, len: WORK_BYTES };
    let back = Span { local: WORK_BYTES, remote: 0, len: WORK_BYTES };
    let write = Plan::write(&near, &far).extents(&[there]).build().expect("the plan is sound");
    let read = Plan::read(&near, &far).extents(&[back]).build().expect("the plan is sound");
    say("ready");
    let is_over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_over);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        // Relaxed: seen soon enough.
        told.store(true, Ordering::Relaxed);
    });
    let (mut moved, mut worst, mut found) = (0_u64, Duration::ZERO, vec![0; WORK_BYTES as usize]);
    let mut notes = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        moved += 1;
        notes.clear();
        engine.notifications(&mut notes);
        let bytes = pattern::bytes(moved, 0, WORK_BYTES as usize);
        near.window().write_from(0, &bytes).expect("its own memory");
        for plan in [&write, &read] {
            let begun = Instant::now();
            let how = Submit::new().within(DEADLINE).notify(NoteId(u128::from(moved)), b"moved");
            let how = if std::ptr::eq(plan, &write) { how } else { Submit::new().within(DEADLINE) };
            let ended = peer.submit(plan, how).expect("the session stands").wait();
            worst = worst.max(begun.elapsed());
            if let Err(fault) = ended {
                say(&format!("lost transfer {moved} after {:?}: {fault}", begun.elapsed()));
                return;
            }
        }
        near.window().read_into(WORK_BYTES, &mut found).expect("its own memory");
        if found != bytes {
            say(&format!("lost: transfer {moved} has other bytes"));
            return;
        }
    }
    say(&format!("moved {moved} worst {}", worst.as_millis()));
}

fn say(words: &str) {
    let mut out = std::io::stdout();
    // Who reads no more has heard enough.
    let _ = writeln!(out, "{words}").and_then(|()| out.flush());
}
