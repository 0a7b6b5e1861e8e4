//! t
use penstock_lab::Workload;
use penstock_lab::perf::{self, Op, Options};
#[test]
fn all() {
    for name in ["w1","w2","w3","w4","w5","w5-rows","kv16","kv16-half","stress", "w2-half"] {
        let mut o = Options::new(Workload::find(name).unwrap());
        o.limit.rounds = 9; o.limit.within = std::time::Duration::from_secs(3);
        o.target_program = Some(env!("CARGO_BIN_EXE_penstock-lab").into());
        if name == "kv16" { o.concurrency = 32; }
        if name == "w4" { o.op = Op::Read; o.concurrency = 8; }
        let t = std::time::Instant::now();
        let r = perf::run(&o).unwrap();
        eprintln!("{:?} {}", t.elapsed(), serde_json::to_string(&r).unwrap());
    }
}
