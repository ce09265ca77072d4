"""Stock programs between urxe and kernel rxe, each as server and as client."""

import pathlib
import subprocess

PINGPONG = ['ibv_rc_pingpong -c -n 100 -s 4096', 'ibv_rc_pingpong -c -n 100 -s 4096 -e',
            'ibv_uc_pingpong -c -n 20 -s 4096', 'ibv_ud_pingpong -c -n 20 -s 1024',
            'ibv_srq_pingpong -c -n 100 -s 4096']
# Of UC and UD few messages: a server waits for each of them, and lost ones are not repeated.
PERFTEST = ['ib_send_bw -n 100', 'ib_send_bw -c UC -n 20', 'ib_send_bw -c UD -n 20',
            'ib_send_lat -n 50', 'ib_send_lat -c UC -n 20', 'ib_send_lat -c UD -n 20',
            'ib_write_bw -n 100', 'ib_write_bw -c UC -n 20', 'ib_write_lat -n 50',
            'ib_write_lat -c UC -n 20', 'ib_read_bw -n 100', 'ib_read_lat -n 50',
            'ib_atomic_bw -n 100', 'ib_atomic_bw -A CMP_AND_SWAP -n 100', 'ib_atomic_lat -n 50']
# Programs of our own, which are as stock to both ends: what a reader of memory sees.
OWN = ['polls_memory -n 300 -m', 'polls_memory -n 300']
SOURCES = pathlib.Path(__file__).parents[1] / 'programs'
SHORT = [PINGPONG[0], PINGPONG[3], 'ib_write_bw -n 100', 'ib_read_lat -n 50', 'ib_atomic_lat -n 50',
         OWN[0]]
GID_INDEX = {'v4': 1, 'v6': 2}
# Where all of them listen by default.
PORT = 18515
LISTENING = f"until ss -Hltn 'sport = {PORT}' | grep -q .; do sleep 0.05; done"
SECONDS = 40


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


def bring(guest):
    """Builds our own programs, for both ends."""
    for name in {program.split()[0] for program in OWN}:
        subprocess.run(['cc', '-Wall', '-Werror', '-O1', '-o', guest.share / name,
                        SOURCES / f'{name}.c', '-libverbs'], check=True)
        status, text = guest.run(f'cp /share/{name} /usr/bin')
        if status:
            raise RuntimeError(f'/usr/bin/{name} in the guest: {text}')


def command(program, family):
    """The program with what it needs to take a GID of this family."""
    index = GID_INDEX[family]
    return f'{program} -g {index}' if program in PINGPONG else f'{program} -F -x {index}'


def exchange(program, family, serves, guest, urxe, addresses):
    """What went wrong between a server and its client, in a line; nothing if all is well."""
    ours, theirs = addresses
    words = command(program, family)
    here = f'PATH={guest.share}:$PATH exec timeout {SECONDS} {urxe} {words}'
    there = f'{words} -d rxe0'
    if serves == 'urxe':
        server = Ours(guest, here)
        subprocess.run([*guest.host, 'timeout', str(SECONDS), 'bash', '-c', LISTENING])
        client = guest.start(f'{there} {ours}')
    else:
        server = guest.start(there)
        guest.run(LISTENING, SECONDS)
        client = Ours(guest, f'{here} {theirs}')
    both = [('client', *client.wait(SECONDS)), ('server', *server.wait(SECONDS))]
    wrong = [f'{side}: exit status {status}: {last_line(text)}'
             for side, status, text in both if status]
    return '; '.join(wrong)


def last_line(text):
    """What a program that failed had to say: not that it told its address, nor rules of tables."""
    lines = [line.strip()[:150] for line in text.splitlines() if line.strip(' -')]
    return ' / '.join([line for line in lines if ' address: ' not in line][-2:])
