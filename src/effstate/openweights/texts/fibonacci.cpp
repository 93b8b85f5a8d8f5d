#include <iostream>

long fibonacci(int n) {
    long before = 0, current = 1;
    for (int i = 0; i < n; ++i) {
        long next = before + current;
        before = current;
        current = next;
    }
    return before;
}

int main() {
    for (int n = 0; n < 20; ++n) {
        std::cout << fibonacci(n) << '\n';
    }
    return 0;
}
