//! Rings for socket I/O.

use super::refused;
use crate::finding::{By, Finding, Mend};
use crate::host::{Call, Host};
use crate::topic::Topic;
use crate::way::Way;

const TOPIC: Topic = Topic::IoUring;
const NAME: &str = "rings";
const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// Feature bits that a socket path wants, with their names.
const FEATURES: [(u32, &str); 3] =
    [(1 << 5, "polls by itself"), (1 << 8, "timed waits"), (1 << 11, "quiet completions")];

/// Polls that stay came with this bit (Linux 5.13); without them the TCP transport does without a ring.
const STAYING_POLLS: u32 = 1 << 10;

/// An administrator's capability, which overrules a setting of 1.
const CAP_SYS_ADMIN: u32 = 21;

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    const MEANS: &str = "`tcp` asks for its sockets by epoll instead, with a system call more for each batch";
    let missing = |found: String| Finding::missing(TOPIC, NAME, found).means(MEANS);
    let answer = host.try_call(Call::IoUring);
    let finding = match (&answer, host.number(DISABLED)) {
        (Ok(words), _) => can(words),
        (Err(_), Some(2)) => missing("switched off for everybody (kernel.io_uring_disabled = 2)".to_owned())
            .mend(host.sysctl("kernel.io_uring_disabled", "0")),
        (Err(_), Some(1)) if !host.has_capability(CAP_SYS_ADMIN) => {
            let group = host.word("/proc/sys/kernel/io_uring_group").unwrap_or_default();
            let who = if group.starts_with('-') { "root".to_owned() } else { format!("root and group {group}") };
            missing(format!("kept for {who} (kernel.io_uring_disabled = 1)"))
                .mend(host.sysctl("kernel.io_uring_disabled", "0"))
        }
        (Err(refusal), _) => {
            let (why, mends) = refused::why(host, Call::IoUring, refusal);
            missing(why).mends(mends)
        }
    };
    vec![finding]
}

/// What the companion told: feature bits, operations, whether it sends without copying.
fn can(words: &str) -> Finding {
    let mut words = words.split_whitespace();
    let bits = words.next().and_then(|bits| u32::from_str_radix(bits.trim_start_matches("0x"), 16).ok());
    let (Some(bits), Some(operations), Some(zero_copy)) = (bits, words.next(), words.next()) else {
        return Finding::unknown(TOPIC, NAME, "they can be made, but did not say what they can do");
    };
    let lacks: Vec<&str> = FEATURES.iter().filter(|(bit, _)| bits & bit == 0).map(|(_, name)| *name).collect();
    let sends = if zero_copy == "1" { "sends without copying" } else { "copies what it sends" };
    let found = format!("work: {operations} operations, {sends}");
    if bits & STAYING_POLLS == 0 {
        return Finding::limited(TOPIC, NAME, found + "; polls do not stay, so `tcp` uses epoll")
            .means("`tcp` asks for its sockets by epoll instead, with a system call more for each batch")
            .on(&[Way::Tcp])
            .mend(Mend::advice(By::Root, "boot Linux 6.1 or later"));
    }
    let found = found + "; `tcp` uses them";
    if lacks.is_empty() && zero_copy == "1" {
        return Finding::ok(TOPIC, NAME, found).on(&[Way::Tcp]);
    }
    let lacks = if lacks.is_empty() { String::new() } else { format!("; lacks {}", lacks.join(", ")) };
    Finding::limited(TOPIC, NAME, found + &lacks)
        .means("sockets between hosts take more system calls, or one copy more")
        .on(&[Way::Tcp])
        .mend(Mend::advice(By::Root, "boot Linux 6.0 or later"))
}

#[cfg(test)]
mod tests {
    use super::can;
    use crate::finding::Status;

    #[test]
    fn it_says_what_tcp_does_with_them() {
        let new = can("0xfff 60 1");
        assert_eq!(new.status, Status::Ok);
        assert!(new.found.ends_with("`tcp` uses them"), "{}", new.found);
        let old = can("0x3ff 37 0");
        assert_eq!(old.status, Status::Limited);
        assert!(old.found.contains("`tcp` uses epoll"), "{}", old.found);
    }
}
