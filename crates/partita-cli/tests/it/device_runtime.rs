//! Kernels that can launch kernels (dynamic parallelism): the mask does not apply to their
//! launches, so they run on the whole GPU or not at all.

use crate::common;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Tenant, World, gpu_program, text};

struct Program {
    tenant: Tenant,
    input: std::process::ChildStdin,
}

impl Program {
    fn start(world: &World, options: &str) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hook/device_runtime.c");
        let program = world.dir().join("device_runtime");
        let given = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).arg("-ldl").output();
        let given = given.expect("cc runs");
        assert!(given.status.success(), "{}", text(&given.stderr));
        let mut command = world.partita("run --name nested --isolation own".split_whitespace());
        command.args(options.split_whitespace()).arg("--").arg(&program).arg(&gpu_program().1);
        let mut tenant = Tenant::start(command.stdin(Stdio::piped()));
        let input = tenant.child.stdin.take().expect("a pipe");
        assert_eq!(tenant.next_line(), "ready");
        Self { tenant, input }
    }

    fn launches(&mut self, route: &str) -> String {
        writeln!(self.input, "{route}").expect("the program reads");
        self.tenant.next_line()
    }
}

const ROUTES: [&str; 3] = ["module", "library", "graph"];

#[test]
fn in_a_partition_they_are_refused_at_the_call() {
    let world = World::new();
    let mut program = Program::start(&world, "--sm tpc:0-7");
    for route in ROUTES {
        assert_eq!(program.launches(route), format!("{route} 701 on 0 SMs"));
    }
    // The rest of the program goes on.
    assert_eq!(program.launches("plain"), "plain 0 on 16 SMs");
    world.ok("set nested --sm tpc:0-65");
    for route in ROUTES {
        assert_eq!(program.launches(route), format!("{route} 0 on 132 SMs"));
    }
    world.ok("set nested --sm tpc:8-9");
    for route in ROUTES {
        assert_eq!(program.launches(route), format!("{route} 701 on 0 SMs"));
    }
    drop(program.input);
    assert_eq!(program.tenant.exit_code(), 0);
    let mut said = String::new();
    let mut stderr = program.tenant.child.stderr.take().expect("a pipe");
    std::io::Read::read_to_string(&mut stderr, &mut said).expect("readable");
    assert_eq!(
        said,
        "partita: device_runtime: a kernel that can launch kernels itself (dynamic parallelism) was refused: what it launches would run \
         outside of this partition (16 of 132 SMs); use --on-misfit widen to run such kernels on the whole GPU, or --sm 100%\n"
    );
}

#[test]
fn where_that_is_allowed_they_run_on_the_whole_gpu_and_are_counted() {
    let world = World::new();
    let mut program = Program::start(&world, "--sm tpc:0-7 --on-misfit widen");
    for route in ROUTES {
        assert_eq!(program.launches(route), format!("{route} 0 on 132 SMs"));
    }
    assert_eq!(program.launches("plain"), "plain 0 on 16 SMs");
    assert_eq!(world.row("nested")["widened_launches"], 3);
    drop(program.input);
    assert_eq!(program.tenant.exit_code(), 0);
}
