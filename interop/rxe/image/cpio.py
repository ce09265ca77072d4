"""Archives that the kernel unpacks as its first root file system (cpio, "newc")."""

import os
import posixpath
import stat

# Debian's packages still use both names of these; here as there the one leads to the other.
MERGED = ['bin', 'lib', 'lib64', 'sbin']


class Archive:
    """Written to an open file; the folders that a name needs come by themselves."""

    def __init__(self, file):
        self.file = file
        self.names = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._entry('TRAILER!!!', 0, b'')

    def merge_usr(self):
        """Makes /bin lead to /usr/bin, and so on."""
        for name in MERGED:
            self._add(name, stat.S_IFLNK | 0o777, f'usr/{name}'.encode())

    def file_of(self, path, name):
        """Adds a file of the host."""
        self._add(name, os.stat(path).st_mode, path.read_bytes())

    def tar(self, tar, wanted):
        """Adds the files of a tar file whose names are `wanted`."""
        for member in tar:
            name = posixpath.normpath(member.name)
            if member.isdir() or not wanted(name):
                continue
            if name.split('/')[0] in MERGED:
                name = f'usr/{name}'
            if member.issym():
                self._add(name, stat.S_IFLNK | 0o777, member.linkname.encode())
            elif member.islnk():
                # One link of two can stand for the other.
                target = '/' + posixpath.normpath(member.linkname)
                self._add(name, stat.S_IFLNK | 0o777, target.encode())
            elif member.isfile():
                self._add(name, stat.S_IFREG | member.mode, tar.extractfile(member).read())

    def _add(self, name, mode, data):
        parent = posixpath.dirname(name)
        if parent and parent not in self.names:
            self._add(parent, stat.S_IFDIR | 0o755, b'')
        if name not in self.names:
            self.names.add(name)
            self._entry(name, mode, data)

    def _entry(self, name, mode, data):
        name = name.encode() + b'\0'
        links = 1
        fields = [len(self.names), mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name), 0]
        header = b'070701' + b''.join(b'%08x' % field for field in fields) + name
        self.file.write(header + bytes(-len(header) % 4) + data + bytes(-len(data) % 4))
