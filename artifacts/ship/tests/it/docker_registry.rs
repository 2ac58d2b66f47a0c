//! Debian's registry on loopback. The tests of `heg` include this file too.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A registry on loopback, which ends with the test.
pub(crate) struct DockerRegistry {
    child: Child,
    /// Address and port.
    pub(crate) host: String,
}

impl DockerRegistry {
    /// Starts it with its files in a folder; an error where it is not installed.
    pub(crate) fn start(folder: &Path) -> std::io::Result<Self> {
        Self::start_with(folder, "")
    }

    /// As [`DockerRegistry::start`], with more lines of its settings.
    pub(crate) fn start_with(folder: &Path, more: &str) -> std::io::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let host = format!("127.0.0.1:{port}");
        let config = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage: {{delete: \
             {{enabled: true}}, filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"{host}\"}}\n{more}",
            folder.join("registry").display()
        );
        let path = folder.join("registry.yml");
        fs::write(&path, config).unwrap();
        let mut command = Command::new("docker-registry");
        command
            .arg("serve")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn()?;
        let started = Instant::now();
        while TcpStream::connect(&host).is_err() {
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "the registry does not start"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { child, host })
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
