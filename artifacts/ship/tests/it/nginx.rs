//! Debian's nginx on loopback, in front of a folder. The tests of `heg` include this file too.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A web server on loopback, which ends with the test.
pub(crate) struct Nginx {
    child: Child,
    /// Address and port.
    pub(crate) host: String,
    log: PathBuf,
}

impl Nginx {
    /// Serves the folder `root` with its own files in `folder`. `listen` follows the port, e.g. ` ssl`, and `more` are
    /// directives of the server. An error where it is not installed.
    pub(crate) fn start(
        folder: &Path,
        root: &Path,
        listen: &str,
        more: &str,
    ) -> std::io::Result<Self> {
        let bound = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = bound.local_addr().unwrap().to_string();
        drop(bound);
        fs::create_dir_all(folder).unwrap();
        let path = |name: &str| folder.join(name).display().to_string();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {};\n", path(kind)));
        let config = format!(
            "daemon off;\nmaster_process off;\npid {};\nerror_log {} crit;\nevents {{}}\nhttp {{\n{}\
             log_format plain '$status $body_bytes_sent $uri';\naccess_log {} plain;\n\
             server {{\nlisten {host}{listen};\nroot {};\n{more}\n}}\n}}\n",
            path("pid"),
            path("errors"),
            temporary.concat(),
            path("log"),
            root.display()
        );
        let settings = folder.join("nginx.conf");
        fs::write(&settings, config).unwrap();
        // Where Debian has it, which is not on everybody's path.
        let mut command = Command::new("/usr/sbin/nginx");
        command
            .arg("-c")
            .arg(&settings)
            .arg("-e")
            .arg(path("errors"));
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut started = Self {
            child,
            host,
            log: folder.join("log"),
        };
        let began = Instant::now();
        while TcpStream::connect(&started.host).is_err() {
            let ended = started.child.try_wait().unwrap();
            assert!(ended.is_none(), "nginx ended: {ended:?}");
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "nginx does not start"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(started)
    }

    /// The answers so far: status, bytes of the body and path, one a line.
    pub(crate) fn answers(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
