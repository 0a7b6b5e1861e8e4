use super::*;

struct Scratch(Store);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("penstock-guests-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a scratch folder");
        Self(Store { folder, recipe: "r1".to_owned() })
    }

    /// An image as `make` leaves one.
    fn put(&self, release: &str, recipe: &str) -> PathBuf {
        let folder = self.0.folder.join(format!("{release}-{recipe}"));
        fs::create_dir_all(&folder).expect("an image's folder");
        fs::write(folder.join(KERNEL), release).expect("a kernel");
        fs::write(folder.join(INITRAMFS), [7; 4096]).expect("a file system");
        let parts = [KERNEL, INITRAMFS].map(|name| part(&folder, name).expect("it was just written")).into();
        let record = Record { release: release.to_owned(), parts };
        fs::write(folder.join(RECORD), serde_json::to_vec(&record).expect("plain data")).expect("a record");
        folder
    }

    fn newest(&self) -> Option<String> {
        self.0.newest().map(|image| image.release)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0.folder);
    }
}

#[test]
fn the_newest_whole_image_of_the_recipe_is_taken() {
    let scratch = Scratch::new("newest");
    assert_eq!(scratch.newest(), None);
    scratch.put("6.12.9+deb12-amd64", "r1");
    scratch.put("6.12.117+deb12-amd64", "r1");
    scratch.put("6.12.200+deb12-amd64", "r2");
    assert_eq!(scratch.newest().as_deref(), Some("6.12.117+deb12-amd64"));
}

#[test]
fn an_image_with_damage_is_none() {
    let scratch = Scratch::new("damage");
    let folder = scratch.put("6.12.9+deb12-amd64", "r1");
    let whole = fs::read(folder.join(INITRAMFS)).expect("it is there");
    let mut damaged = whole.clone();
    damaged[4000] ^= 1;
    for bytes in [&whole[..4095], &damaged, &[]] {
        fs::write(folder.join(INITRAMFS), bytes).expect("it can be written");
        assert_eq!(scratch.newest(), None, "{} bytes", bytes.len());
    }
    fs::write(folder.join(INITRAMFS), &whole).expect("it can be written");
    assert!(scratch.newest().is_some());
    fs::remove_file(folder.join(KERNEL)).expect("it is there");
    assert_eq!(scratch.newest(), None);
    scratch.put("6.12.9+deb12-amd64", "r1");
    fs::write(folder.join(RECORD), "{").expect("it can be written");
    assert_eq!(scratch.newest(), None);
}

#[test]
fn one_process_at_a_time_makes_an_image() {
    let scratch = Scratch::new("lock");
    let first = scratch.0.lock(&|_| ()).expect("nobody else");
    let second = File::open(scratch.0.folder.join("lock")).expect("the lock's file");
    assert!(matches!(second.try_lock(), Err(TryLockError::WouldBlock)));
    drop(first);
    assert!(second.try_lock().is_ok());
}
