# shellcheck shell=bash
# A package is not installed over another project's extension of the same name.
# shellcheck source=test/deb/lib.sh
. /packages/lib.sh

# Of the other one, with our library in its place.
other=postgresql-$major-pg-task
repack "$deb" /tmp/other.deb "s/^Package: .*/Package: $other/; /^Conflicts:/d; /^Source:/d"
rm -rf /tmp/repack/DEBIAN/p* /tmp/repack/DEBIAN/conffiles /tmp/repack/etc
dpkg-deb -b /tmp/repack /tmp/other.deb >/dev/null

check 'the other one is installed' install /tmp/other.deb
check 'dpkg does not install ours beside it' fails_with 'conflict' dpkg -i "$deb"
check 'apt would remove the other one' says "Remv $other" apt-get -s install "$deb"
check 'apt asks before' fails_with 'Abort' apt-get -q install "$deb"
check 'the other one is still whole' dpkg --verify "$other"

echo "shared_preload_libraries = 'pg_task'" >"$conf_d/other.conf"
check 'a server runs with the other one' cluster start
check 'ours is refused meanwhile, whatever apt was told' \
    fails_with "A server is running with $library" install "$deb"
check 'nothing of ours is there' [ ! -e "/usr/share/doc/$package" ]
rm "$conf_d/other.conf"
check 'the server restarts without the line' cluster restart
check 'then ours is installed' install "$deb"
check 'and it is whole' dpkg --verify "$package"

cp "$library" /tmp/pg_task.so
dpkg -P "$package" >/dev/null 2>&1
cp /tmp/pg_task.so "$library"
check 'a library that no package owns is not overwritten' \
    fails_with "$library belongs to no package" install "$deb"
check 'it is still there' cmp /tmp/pg_task.so "$library"
rm "$library"
check 'without it, the package is installed' install "$deb"
