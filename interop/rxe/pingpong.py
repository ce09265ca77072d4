"""Stock pingpongs between urxe and kernel rxe, each as server and as client; data is verified."""

import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from guest import Guest  # noqa: E402
from image.build import KERNELS  # noqa: E402

OURS, THEIRS = '10.77.0.1', '10.77.0.2'
PROGRAMS = ['ibv_rc_pingpong -c -n 200 -s 4096', 'ibv_rc_pingpong -c -n 200 -s 4096 -e',
            'ibv_uc_pingpong -c -n 20 -s 1024', 'ibv_ud_pingpong -c -n 20 -s 1024',
            'ibv_srq_pingpong -c -n 200 -s 4096']
LISTENING = "until ss -Hltn 'sport = 18515' | grep -q .; do sleep 0.05; done"
SECONDS = 30


def options(parser):
    parser.add_argument('--kernel', default='all', choices=[*KERNELS, 'all'])
    parser.add_argument('--short', action='store_true', help='only the first kernel')
    parser.add_argument('--only', default='', metavar='TEXT', help='only programs with this text')


class Ours:
    """A stock program on our side of the wire, over urxed; as the guest's Command is."""

    def __init__(self, guest, script):
        self.process = subprocess.Popen([*guest.host, 'bash', '-c', script], text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)

    def wait(self, timeout):
        try:
            text, _ = self.process.communicate(timeout=timeout)
            return self.process.returncode, text
        except subprocess.TimeoutExpired:
            self.process.kill()
            return 124, self.process.communicate()[0]


def exchange(guest, program, urxe, serves):
    """What went wrong between a server and its client, or nothing."""
    ours, theirs = f'exec timeout {SECONDS} {urxe} {program} -g 0', f'{program} -g 1 -d rxe0'
    if serves == 'urxe':
        server = Ours(guest, ours)
        subprocess.run([*guest.host, 'timeout', str(SECONDS), 'bash', '-c', LISTENING])
        client = guest.start(f'{theirs} {OURS}')
    else:
        server = guest.start(theirs)
        guest.run(LISTENING, SECONDS)
        client = Ours(guest, f'{ours} {THEIRS}')
    both = [('client', *client.wait(SECONDS)), ('server', *server.wait(SECONDS))]
    return [f'{side}: exit status {status}\n{text}' for side, status, text in both if status]


def run(args):
    kernels = list(KERNELS) if args.kernel == 'all' else [args.kernel]
    results = []
    for kernel in kernels[:1] if args.short else kernels:
        with tempfile.TemporaryDirectory() as folder, Guest(kernel, f'pingpong{kernel}') as guest:
            socket = f'{folder}/urxed.sock'
            daemon = Ours(guest, f'exec {args.bin}/urxed --addr {OURS} --socket {socket}')
            ready = f'until [ -S {socket} ]; do sleep 0.05; done'
            subprocess.run(['timeout', '10', 'bash', '-c', ready], check=True)
            for program in (p for p in PROGRAMS if args.only in p):
                for serves in 'urxe', 'kernel':
                    urxe = f'{args.bin}/urxe run --daemon {socket} --'
                    wrong = exchange(guest, program, urxe, serves)
                    name = f'{kernel}: {program}, {serves} serves'
                    print(f'{"FAILED" if wrong else "ok":8}{name}', *wrong, sep='\n', flush=True)
                    results.append({'name': name, 'wrong': wrong})
            daemon.process.terminate()
            daemon.wait(5)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + '\n')
    failed = sum(bool(result['wrong']) for result in results)
    print(f'{len(results)} runs, {failed} failed')
    return 1 if failed or not results else 0
