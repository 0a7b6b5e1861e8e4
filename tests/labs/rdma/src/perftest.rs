//! Programs of perftest on both sides of a rail: what the device and its wire can do without us.

use std::time::Duration;

use crate::rails::Side;
use crate::{Guest, Job, LabError, Running};

/// Numbers in the shortest table, which is that of a bandwidth test.
const COLUMNS: usize = 5;

/// How long a server may take to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);

/// Waits until somebody listens at port 18515, without a program for each look.
const LISTENS: &str = r#"
while :; do
    for file in /proc/net/tcp /proc/net/tcp6; do
        while read -r line; do
            case $line in *":4853 "*" 0A "*) exit 0 ;; esac
        done <$file
    done
    sleep 0.1
done
"#;

/// A program and its arguments, for both sides. The server is side B.
#[derive(Debug, Clone)]
pub struct Perftest {
    words: Vec<String>,
    rail: u8,
    limit: Duration,
}

/// What the client shows at the end: the numbers of its last line.
#[derive(Debug, Clone, PartialEq)]
pub struct Table(pub Vec<f64>);

impl Perftest {
    /// A program over a rail, as a line of words.
    pub fn new(line: &str, rail: u8) -> Self {
        let words = line.split_whitespace().map(str::to_owned).collect();
        Self { words, rail, limit: Duration::from_secs(60) }
    }

    /// How long each side may take; a minute otherwise.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    fn job(&self, side: Side) -> Job {
        // Each line is shown when it is said, also to a pipe. GID 1 is the one of the IPv4 address.
        let job = Job::new("stdbuf").argument("-oL").arguments(self.words.clone()).within(self.limit);
        job.arguments(["-F", "-x", "1", "-d"]).argument(side.device(self.rail))
    }

    /// Starts the server, and gives it when it listens.
    pub fn serve<'g>(&self, guest: &'g Guest) -> Result<Running<'g>, LabError> {
        let server = guest.spawn(&self.job(Side::B))?;
        guest.check(&Job::shell(LISTENS).within(LISTENS_WITHIN))?;
        Ok(server)
    }

    /// Starts the client.
    pub fn call<'g>(&self, guest: &'g Guest) -> Result<Running<'g>, LabError> {
        guest.spawn(&self.job(Side::A).argument(Side::B.address(self.rail).to_string()))
    }

    /// Runs both to their ends, which have to be good.
    pub fn run(&self, guest: &Guest) -> Result<Table, LabError> {
        let server = self.serve(guest)?;
        let client = self.call(guest)?.wait()?.expect_success("the client")?;
        server.wait()?.expect_success("the server")?;
        let text = client.output();
        Table::parse(&text).ok_or_else(|| LabError::Unreadable { what: "the table of perftest".to_owned(), text })
    }
}

impl Table {
    fn parse(text: &str) -> Option<Self> {
        text.lines().rev().find_map(|line| {
            let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
            numbers.ok().filter(|numbers| numbers.len() >= COLUMNS).map(Self)
        })
    }

    /// Of a bandwidth test: the average in millions of bytes a second. The program counts in MiB.
    pub fn mb_per_s(&self) -> f64 {
        self.0[3] * 1.048_576
    }

    /// Of a bandwidth test with one request at a time: what each took, in microseconds. The program counts them in millions a
    /// second.
    pub fn each_us(&self) -> f64 {
        1.0 / self.0[4]
    }

    /// Of a latency test: what is typical, in microseconds.
    pub fn typical_us(&self) -> f64 {
        self.0[4]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_numbers_counts() {
        let text = " #bytes  #iterations  BW peak[MB/sec]  BW average[MB/sec]  MsgRate[Mpps]\n \
                    65536  400  47.21  46.00  0.000755\n---\n";
        let table = Table::parse(text).expect("a table");
        assert_eq!(table, Table(vec![65_536.0, 400.0, 47.21, 46.0, 0.000_755]));
        assert!((table.mb_per_s() - 48.23).abs() < 0.01);
        assert!((table.each_us() - 1324.5).abs() < 0.5);
        assert_eq!(Table::parse("nothing here"), None);
    }
}
