//! Workloads: what real inference moves, as files that every tool takes by name.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The files of `bench/workloads`, in the order in which they are listed.
const FILES: &[&str] = &[
    include_str!("../../workloads/w1.yaml"),
    include_str!("../../workloads/w2.yaml"),
    include_str!("../../workloads/w3.yaml"),
    include_str!("../../workloads/w4.yaml"),
    include_str!("../../workloads/w5.yaml"),
    include_str!("../../workloads/w5-rows.yaml"),
    include_str!("../../workloads/kv16.yaml"),
    include_str!("../../workloads/stress.yaml"),
];

/// Names the variant of a workload that leaves half of its blocks mergeable: `kv16-half`.
const HALF_SUFFIX: &str = "-half";

/// What is moved: layers of blocks whose places are shuffled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// What tools call it.
    pub name: String,
    /// The real use it stands for.
    pub what: String,
    /// Bytes of a block, a multiple of 8.
    pub block_bytes: u64,
    /// Bytes from one place for a block to the next, where it is more than the block's length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride_bytes: Option<u64>,
    /// Blocks of each layer.
    pub blocks: u32,
    /// Layers.
    pub layers: u32,
    /// Transfers that the layers are dealt out to, each as many.
    #[serde(default = "one")]
    pub batches: u32,
    /// Whether each transfer counts up an arrival counter of the target.
    #[serde(default)]
    pub arrivals: bool,
    /// How many blocks directly follow the one before, on both sides.
    #[serde(default)]
    pub mergeable: Mergeable,
}

const fn one() -> u32 {
    1
}

/// How many blocks directly follow the one before, on both sides, so that they can be moved as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mergeable {
    /// None but by chance: a pool after long use.
    #[default]
    None,
    /// Every second one.
    Half,
}

/// Why a workload cannot be used.
#[derive(Debug)]
pub enum WorkloadError {
    /// No workload has this name, and it is no file either.
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The file cannot be read.
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file does not describe a workload.
    Malformed {
        /// Where it came from.
        from: String,
        /// What is wrong with it.
        source: serde_yaml::Error,
    },
    /// Its numbers do not fit together.
    Impossible {
        /// Its name.
        name: String,
        /// What does not fit, and what would.
        why: &'static str,
    },
}

impl fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => {
                let known: Vec<String> = Workload::all().into_iter().map(|workload| workload.name).collect();
                let known = known.join(", ");
                write!(f, "there is no workload `{name}`: give one of {known}, any of them with `{HALF_SUFFIX}`, ")?;
                f.write_str("or the path of a YAML file")
            }
            Self::Unreadable { path, source } => write!(f, "cannot read the workload {path}: {source}"),
            Self::Malformed { from, source } => write!(f, "{from} does not describe a workload: {source}"),
            Self::Impossible { name, why } => write!(f, "the workload `{name}` cannot be run: {why}"),
        }
    }
}

impl std::error::Error for WorkloadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { source, .. } => Some(source),
            Self::Malformed { source, .. } => Some(source),
            Self::Unknown { .. } | Self::Impossible { .. } => None,
        }
    }
}

impl Workload {
    /// The workloads that are built in.
    pub fn all() -> Vec<Self> {
        FILES.iter().map(|text| Self::parse(text, "a built-in file").expect("a test parses every file")).collect()
    }

    /// A built-in workload, its `-half` variant, or the one that a YAML file describes.
    pub fn find(name: &str) -> Result<Self, WorkloadError> {
        let mut all = Self::all().into_iter();
        if let Some(found) = all.clone().find(|workload| workload.name == name) {
            return Ok(found);
        }
        if let Some(plain) = name.strip_suffix(HALF_SUFFIX)
            && let Some(found) = all.find(|workload| workload.name == plain)
        {
            return Ok(Self { name: name.to_owned(), mergeable: Mergeable::Half, ..found });
        }
        if !Path::new(name).is_file() {
            return Err(WorkloadError::Unknown { name: name.to_owned() });
        }
        let text = std::fs::read_to_string(name)
            .map_err(|source| WorkloadError::Unreadable { path: name.to_owned(), source })?;
        Self::parse(&text, name)
    }

    /// Reads a workload and checks it; `from` says where the text is from.
    pub fn parse(text: &str, from: &str) -> Result<Self, WorkloadError> {
        let malformed = |source| WorkloadError::Malformed { from: from.to_owned(), source };
        let workload: Self = serde_yaml::from_str(text).map_err(malformed)?;
        workload.check()?;
        Ok(workload)
    }

    /// Whether its numbers fit together.
    pub fn check(&self) -> Result<(), WorkloadError> {
        let refuse = |why| Err(WorkloadError::Impossible { name: self.name.clone(), why });
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(8) || !self.stride_bytes().is_multiple_of(8) {
            return refuse("`block_bytes` and `stride_bytes` must be multiples of 8, and not 0");
        }
        if self.stride_bytes() < self.block_bytes {
            return refuse("`stride_bytes` must not be less than `block_bytes`");
        }
        if self.blocks == 0 || self.layers == 0 || self.batches == 0 {
            return refuse("`blocks`, `layers` and `batches` must not be 0");
        }
        if !self.layers.is_multiple_of(self.batches) {
            return refuse("`batches` must divide `layers`, so that all transfers are alike");
        }
        let places = u64::from(self.blocks) * u64::from(self.layers);
        if self.stride_bytes().checked_mul(places).is_none_or(|bytes| bytes > 1 << 40) {
            return refuse("it moves more than a TiB");
        }
        Ok(())
    }

    /// Bytes from one place for a block to the next.
    pub fn stride_bytes(&self) -> u64 {
        self.stride_bytes.unwrap_or(self.block_bytes)
    }

    /// Blocks of all layers.
    pub fn blocks_total(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.layers)
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.block_bytes * self.blocks_total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_workload_has_the_size_it_is_known_by() {
        let sizes: Vec<(String, u64, u64)> = Workload::all()
            .into_iter()
            .map(|workload| (workload.name.clone(), workload.blocks_total(), workload.bytes()))
            .collect();
        let expected = [
            ("w1", 81_920, 2_684_354_560),
            ("w2", 18_880, 77_332_480),
            ("w3", 7_808, 575_668_224),
            ("w4", 8_192, 268_435_456),
            ("w5", 1, 134_217_728),
            ("w5-rows", 16_384, 134_217_728),
            ("kv16", 1_000, 16_384_000),
            ("stress", 499_712, 575_668_224),
        ];
        assert_eq!(sizes, expected.map(|(name, blocks, bytes)| (name.to_owned(), blocks, bytes)));
    }

    #[test]
    fn every_built_in_workload_is_found_by_its_name_and_as_its_half_mergeable_variant() {
        for workload in Workload::all() {
            assert_eq!(Workload::find(&workload.name).unwrap(), workload);
            let half = Workload::find(&format!("{}-half", workload.name)).unwrap();
            assert_eq!((half.mergeable, half.bytes()), (Mergeable::Half, workload.bytes()));
        }
        assert_eq!(Workload::find("w4").unwrap().batches, 32);
    }

    #[test]
    fn a_file_is_a_workload_too() {
        let path = std::env::temp_dir().join(format!("penstock-workload-{}.yaml", std::process::id()));
        std::fs::write(&path, "{name: mine, what: a test, block_bytes: 64, blocks: 3, layers: 2}").unwrap();
        let found = Workload::find(path.to_str().unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.unwrap().bytes(), 384);
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_reason() {
        let unknown = Workload::find("w9").unwrap_err().to_string();
        assert!(unknown.contains("`w9`") && unknown.contains("kv16"), "{unknown}");
        for (wrong, reason) in [
            ("{name: x, what: y, block_bytes: 12, blocks: 3, layers: 2}", "multiples of 8"),
            ("{name: x, what: y, block_bytes: 64, stride_bytes: 8, blocks: 3, layers: 2}", "less than"),
            ("{name: x, what: y, block_bytes: 64, blocks: 0, layers: 2}", "must not be 0"),
            ("{name: x, what: y, block_bytes: 64, blocks: 3, layers: 3, batches: 2}", "divide"),
            ("{name: x, what: y, block_bytes: 9223372036854775800, blocks: 3, layers: 3}", "TiB"),
            ("{name: x, what: y, blocks: 3, layers: 3}", "does not describe a workload"),
            ("{name: x, what: y, block_bytes: 64, blocks: 3, layers: 3, more: 1}", "does not describe a workload"),
        ] {
            let refused = Workload::parse(wrong, "a text").unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }
}
