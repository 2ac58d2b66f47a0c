//! Debian's registry on loopback, with its files in a folder.

use anyhow::{Context, Result};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use xtask::fail::Fail;

/// A running registry, ended when dropped.
pub(super) struct Registry {
    child: Child,
    /// Address and port.
    pub(super) host: String,
}

impl Registry {
    pub(super) fn start(folder: &Path) -> Result<Self> {
        let host = format!("127.0.0.1:{}", crate::server::free_port()?);
        let settings = folder.join("registry.yml");
        let config = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage: {{delete: {{enabled: true}}, \
             filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"{host}\"}}\n",
            folder.join("registry").display()
        );
        fs::write(&settings, config)?;
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&settings);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| {
                Fail::environment("cannot start `docker-registry`")
                    .hint("install it (Debian: `apt-get install docker-registry skopeo curl`)")
            })?;
        let registry = Self { child, host };
        let begin = Instant::now();
        while TcpStream::connect(&registry.host).is_err() {
            if begin.elapsed() > START_PATIENCE {
                return Err(Fail::environment("docker-registry does not listen").into());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(registry)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Chosen: ten times what a loaded machine takes.
const START_PATIENCE: Duration = Duration::from_secs(30);
