# SPDX-License-Identifier: Apache-2.0
"""A working day in 100 commands: looking around, editing, building, testing, git, packages from allowed hosts.

Each line is one command of an agent as it would be typed, run one after another in the same project. Two of them need
a person: one wants a host that nobody allowed, and one changes a file that runs when somebody opens the project.
"""

# Marks: what needs the network beyond the allowed hosts, and what is expected to fail as such commands do
NETWORK = "NETWORK "
FAILS = "FAILS "

HOSTS = ("example.org", "pip.example.org", "npm.example.org")
QUESTIONS = (
    "Run command with network access: curl -sSf https://www.example.org/hello -o docs/hello.txt?",
    "Apply the held change of .vscode/tasks.json?",
)

LOOKING = """
pwd
ls -la
git status --short
git log --oneline
cat README.md
head -n 5 src/shapes.py
wc -l src/*.py
find . -name '*.py' -not -path './.git/*'
grep -rn 'def ' src
uname -a
python3 --version
node --version
gcc --version | head -n 1
env | sort | head -n 40
df -h . | tail -n 1
"""

EDITING = """
sed -i 's/3.14/3.14159/' src/shapes.py
printf '\\n\\ndef square(side):\\n    return side * side\\n' >> src/shapes.py
mkdir -p docs checks/data
printf '# Shapes\\n\\nAreas of shapes.\\n' > docs/index.md
cp README.md docs/readme-copy.md
mv docs/readme-copy.md docs/about.md
python3 -c "open('README.md', 'a').write('See docs.' + chr(10))"
printf 'def perimeter(side):\\n    return 4 * side\\n' > src/lines.py
sed -i '1i # Lines around shapes' src/lines.py
cat src/lines.py | tr a-z A-Z > checks/data/upper.txt
rm checks/data/upper.txt
printf '*.o\\nbuild/\\nlib/\\nnode_modules/\\n__pycache__/\\n' > .gitignore
echo '- squares' >> CHANGELOG.md
printf '%s\\n' '--- a/src/lines.py' '+++ b/src/lines.py' '@@ -3 +3 @@' '-    return 4 * side' '+    return side*4' > p
git apply --unidiff-zero p && rm p
python3 -m json.tool package.json > package.tmp && mv package.tmp package.json
chmod +x scripts/report.sh
ln -s docs/index.md INDEX.md
awk 'NR <= 3' README.md > docs/short.md
git diff --stat
"""

BUILDING = """
make
./build/hello
make clean
mkdir -p build && gcc -Wall -O2 -o build/hello src/hello.c
gcc -c src/hello.c -o build/hello.o && ar rcs build/libhello.a build/hello.o
gcc -E src/hello.c | wc -l
make -j2
strip build/hello && ./build/hello
python3 -m compileall -q src
python3 -m zipapp src -o build/shapes.pyz -m 'shapes:main'
python3 build/shapes.pyz
node -e "console.log(require('./package.json').name)"
node src/index.js
scripts/report.sh
tar czf build/src.tar.gz src && tar tzf build/src.tar.gz
FAILS echo 'int main( {' | gcc -o build/broken -x c -
"""

TESTING = """
python3 -m unittest discover -s checks -q
python3 -m unittest checks.test_shapes -v
PYTHONPATH=src python3 -c 'import shapes; assert shapes.square(3) == 9'
python3 -m doctest src/shapes.py
python3 -X dev -W error -m unittest discover -s checks -q
node --test checks/shapes.test.js
FAILS python3 -c 'assert False'
sed 's/shapes/lines/g; s/Shapes/Lines/; s/square(3), 9/perimeter(2), 8/' checks/test_shapes.py > checks/test_lines.py
PYTHONPATH=src python3 -m unittest checks.test_lines
python3 -m cProfile -s cumtime src/shapes.py | head -n 5
(python3 -m http.server 8123 -b ::1 & curl -sf --retry 20 --retry-connrefused http://[::1]:8123/README.md; kill $!)
sh -c 'for i in 1 2 3; do python3 -m unittest -q checks.test_shapes || exit 1; done'
"""

GIT = """
git add -A
git commit -q -m 'Add squares and lines'
git log --stat -1
git branch feature
git switch -q feature
echo '- perimeters' >> CHANGELOG.md && git commit -q -am 'Note perimeters'
git switch -q -
git merge -q --no-edit feature
git branch -d feature
git tag v0.1
git stash list
echo draft >> README.md && git stash && git stash pop
git checkout -- README.md
git show --stat HEAD
git diff HEAD~1 --name-only
git blame -s README.md | head -n 2
git rebase -q HEAD~1
git cherry -v HEAD~1
git fsck --no-dangling
git gc -q
git worktree list
git clone -q https://example.org/repo.git build/copy && cat build/copy/file
git ls-remote https://example.org/repo.git
rm -rf build/copy
"""

PACKAGES = """
python3 -m pip install -q --disable-pip-version-check --target lib --index-url https://pip.example.org/simple/ demo
PYTHONPATH=lib python3 -c 'import demo'
python3 -m pip list --disable-pip-version-check --path lib
npm install --no-audit --no-fund --no-update-notifier --registry https://npm.example.org/ demo
node -e "require('demo')"
npm ls --no-update-notifier
curl -sSf https://example.org/hello
NETWORK curl -sSf https://www.example.org/hello -o docs/hello.txt
mkdir -p .vscode && printf '{"version": "2.0.0", "tasks": []}\\n' > .vscode/tasks.json
rm -rf lib
git add -A && git commit -q -m 'Install packages'
git describe --tags --always
rm -rf build
"""

COMMANDS = tuple(
    line for part in (LOOKING, EDITING, BUILDING, TESTING, GIT, PACKAGES) for line in part.strip().splitlines()
)
